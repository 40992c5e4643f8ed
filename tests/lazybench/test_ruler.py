"""RULER, from a file with the columns of the hub's dataset."""

import json
from dataclasses import replace
from statistics import fmean
from string import ascii_lowercase

import pytest
import yaml
from support import rows

from lazybench.config import CONF, DataConfig, ModelConfig
from lazybench.data import load_dataset_configs, load_records
from lazybench.model.prompts import PromptBuilder

ROW = {"context": "VAR AB = 7. ", "question": "Which are 7? ", "answer_prefix": "Answer: they are:"}


def test_a_tasks_rows_are_prompted_word_for_word_and_scored_over_all_references(ran, tmp_path, tokenizer):
    file = tmp_path / "records.jsonl"

    def answer(task, *references):
        lines = [ROW | {"task": name, "answer": references} for name in ("vt", "qa_1")]
        file.write_text("\n".join(map(json.dumps, lines)))
        words = ("data=ruler", f"data.load={{path:json,data_files:{file}}}", f"task={task}", "method=baseline")
        (row,) = rows(ran(*words, "timing.per_dataset=0", output=task))
        return row

    row = answer("vt", *ascii_lowercase)
    assert row["score"] == pytest.approx(fmean(letter in row["prediction"].lower() for letter in ascii_lowercase))
    assert 0 < row["score"] < 1
    assert answer("qa_1", "no such words", *ascii_lowercase)["score"] == 1
    settings = yaml.safe_load((CONF / "data/ruler.yaml").read_text("utf-8"))
    settings["load"] = {"path": "json", "data_files": str(file)}
    (record,) = load_records("vt", DataConfig(**settings), None)
    assert record.hash != replace(record, answer_prefix="").hash
    model = ModelConfig("tiny", "nowhere", limit=9, chat="[{prompt}]")  # nothing is cut
    prompt = PromptBuilder(tokenizer, model, load_dataset_configs(settings["datasets"])["vt"]).build(record)
    assert tokenizer.decode(prompt.ids[0][1:]) == "[VAR AB = 7. Which are 7? ]Answer: they are:"
