"""MiniLongBench from the files of its repository: context and question taken from whole prompts."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybench.config import CONF, DataConfig
from lazybench.data import choose, load_dataset_configs, load_records
from lazybench.data.dataset_configs import english
from lazybench.errors import LazyBenchError

CONFIG = yaml.safe_load((CONF / "data/minilongbench.yaml").read_text("utf-8"))
DATASETS = {settings["like"]: name for name, settings in CONFIG["datasets"].items()}
CONFIGS = load_dataset_configs(CONFIG["datasets"])
# OpenCompass's prompts, where they are not LongBench's.
STORY = "using a single phrase if possible. Do not provide any explanation.\n\n"
PASSAGES = "Only give me the answer and do not output any other words."
OPENCOMPASS = {
    "narrativeqa": "You are given a story, which can be either a novel or a movie script, and a question. Answer the "
    f"question as concisely as you can, {STORY}Story: {{context}}\n\nNow, answer the question based on the story as "
    f"concisely as you can, {STORY}Question: {{input}}\nAnswer:",
    "qasper": f"Answer the question based on the given passages. {PASSAGES}\n\nThe following are given passages.\n"
    f"{{context}}\n\nAnswer the question based on the given passages. {PASSAGES}\n\nQuestion: {{input}}\nAnswer:",
    "multi_news": "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\n"
    "Now, write a one-page summary of all the news.\n\nSummary:\n",
    "triviaqa": f"Answer the question based on the given passage. {PASSAGES} The following are some examples.\n\n"
    "{context}\n\n\n{input}",
    "samsum": "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n\n"
    "{input}",
}
OPENINGS = {"trec": "Question: ", "triviaqa": "Passage:\n", "samsum": "Dialogue: ", "lsht": "新闻内容：\n"}


def read(root, like):
    return load_records(DATASETS[like], DataConfig(**CONFIG | {"root": str(root)}), None)


def write(root, like, *entries):
    folder = root / "pred_data/example"
    folder.mkdir(parents=True, exist_ok=True)
    numbered = {str(number): entry | {"prediction": "x", "time": 1.5} for number, entry in enumerate(entries)}
    (folder / f"MiniLongBench_{like}.json").write_text(json.dumps(numbered), "utf-8")


def test_all_21_datasets_and_237_records_are_there():
    assert list(DATASETS)[:16] == english()
    assert choose("all", DataConfig(**CONFIG), CONFIGS).datasets == [*DATASETS.values()]
    assert (len(DATASETS), sum(CONFIGS[name].records for name in DATASETS.values())) == (21, 237)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*DATASETS]), st.text(), st.text(st.characters(exclude_characters="\n")))
def test_records_come_back_from_prompts(tmp_path_factory, like, context, question):
    root, template = tmp_path_factory.mktemp("clone"), OPENCOMPASS.get(like, CONFIGS[DATASETS[like]].prompt)
    question = OPENINGS.get(like, "") + question
    if "{input}" not in template or like == "repobench-p":  # nothing separates the two
        context, question = context + question * ("{input}" in template), ""
    prompt = template.format(context=context, input=question)
    classes = {"answers": ["a", "b"], "all_classes": ["a", "b", "c"]}
    parts = [{"role": "HUMAN", "prompt": prompt[:20]}, {"role": "HUMAN", "prompt": prompt[20:]}]
    write(root, like, {"origin_prompt": prompt, "gold": ["a", "b"]}, {"origin_prompt": parts, "gold": classes})
    first, second = read(root, like)
    for record in (first, second):
        assert (record.context, record.input, record.answers) == (context, question, ("a", "b"))
        assert record.language == CONFIGS[DATASETS[like]].language
    assert (first.all_classes, second.all_classes) == (None, ("a", "b", "c"))


@pytest.mark.parametrize("entry", [{"origin_prompt": "Something else", "gold": ["a"]}, {"origin_prompt": 3}])
def test_another_prompt_is_named(tmp_path, entry):
    right = {"origin_prompt": CONFIGS[DATASETS["qmsum"]].prompt, "gold": ["a"]}
    write(tmp_path, "qmsum", right, entry)
    with pytest.raises(LazyBenchError, match=r"MiniLongBench_qmsum.json: record 1: .*OpenCompass's prompt of qmsum"):
        read(tmp_path, "qmsum")


def test_a_folder_in_longbenchs_format_is_read_too(tmp_path):
    row = {"_id": "7", "dataset": "lcc", "context": "a = 1\n", "input": "", "answers": ["b = 2"]}
    (tmp_path / "lcc.jsonl").write_text(json.dumps(row))
    (record,) = read(tmp_path, "lcc")
    assert (record.id, record.dataset, record.context) == ("7", "lcc_mini", "a = 1\n")
