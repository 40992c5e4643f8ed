"""LongBench v2 from its file to the report: its prompt, and scores by difficulty and length."""

import json
import re

import pytest
import yaml
from support import folders, rows

from lazybench.cli.score import main as score
from lazybench.config import CONF, DataConfig, ModelConfig
from lazybench.data import load_dataset_configs, load_records
from lazybench.model.prompts import PromptBuilder

CONFIG = yaml.safe_load((CONF / "data/longbench_v2.yaml").read_text("utf-8"))
KINDS = [("easy", "short", "A"), ("easy", "long", "A"), ("hard", "medium", "A"), ("hard", "short", "B")]
SCORES = {"easy": 100, "hard": 50, "short": 50, "medium": 100, "long": 100}  # if each answer is A
ROW = {"domain": "Single-Document QA", "question": " Who {sings}?\n", "context": "\nA wren. "}
ROW |= {f"choice_{letter}": f" {letter.lower()} bird " for letter in "ABCD"}
# prompts/0shot.txt, filled in as pred.py does.
PROMPT = """Please read the following text and answer the question below.

<text>
A wren.
</text>

What is the correct answer to this question: Who {sings}?
Choices:
(A) a bird
(B) b bird
(C) c bird
(D) d bird

Format your response as follows: "The correct answer is (insert answer here)"."""


@pytest.fixture
def file(tmp_path):
    """The file of the hub's dataset with four records."""
    path = tmp_path / "data.json"
    kinds = [dict(zip(("difficulty", "length", "answer"), kind, strict=True)) for kind in KINDS]
    path.write_text(json.dumps([ROW | kind | {"_id": f"id{number}"} for number, kind in enumerate(kinds)]))
    return path


def test_the_official_prompt(file, tmp_path, tokenizer):
    for root in (file, tmp_path):  # or a copy of the hub's folder
        first, *others = load_records("longbench_v2", DataConfig(**CONFIG | {"root": str(root)}), None)
        assert (first.id, first.answers, first.groups, len(others)) == ("id0", ("A",), "easy short", 3)
    model = ModelConfig("tiny", "nowhere", limit=999)
    prompt = PromptBuilder(tokenizer, model, load_dataset_configs(CONFIG["datasets"])["longbench_v2"]).build(first)
    assert prompt.text == PROMPT


def test_a_run_is_scored_and_reported_by_difficulty_and_length(run, report, file, tmp_path, capsys):
    words = ("data=longbench_v2", f"data.root={file}", "data.limit=null", "task=longbench_v2")
    quick = ("method=baseline", "timing.per_dataset=0")
    code, out, err = run(*words, *quick)
    assert code == 0, err
    assert "records: LongBench v2\n" in out
    (folder,) = folders(tmp_path / "runs")
    predictions = folder / "predictions.jsonl"
    answered = [row | {"prediction": "I see. The correct answer is **(A)**"} for row in rows(folder)]
    predictions.write_text("".join(json.dumps(row) + "\n" for row in answered))
    assert score([str(predictions), "--output", str(predictions)]) == 0
    assert [row["score"] for row in rows(folder)] == [1, 1, 1, 0]
    heading, numbers = " +".join(["records", "score", *SCORES]), " +".join(f"{value}.00" for value in SCORES.values())
    table = rf" +{heading}.*\n.*\nlongbench_v2 +4 +75\.00 +{numbers}"
    assert re.search(table, capsys.readouterr().out)
    (folder / "scores.json").unlink()
    for _ in range(2):  # computed, then read
        assert re.search(table, run(*words, *quick)[1])
    numbers = json.loads((folder / "scores.json").read_text())["datasets"]["longbench_v2"]
    assert (numbers["score"], numbers["score_by_group"]) == (75, SCORES)
    text = (report() / "report.md").read_text("utf-8")
    cells = " | ".join(f"{value}.00" for value in SCORES.values())
    assert f"| longbench_v2 | unmodified | {cells} |" in text
