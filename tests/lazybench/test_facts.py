"""LongBench's facts, its Chinese datasets among them, and those of a user's datasets."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lazybench import metrics
from lazybench.data.facts import datasets_of, english, load_facts, task_names, tasks
from lazybench.errors import LazyBenchError

SHARED = Path(__file__).parents[2].parent / "shared/longbench"
MINE = {"prompt": "{context}\nQ: {input}", "max_new_tokens": 8, "metric": "qa_f1"}
FACTS = load_facts()
CHINESE = ("multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh")


@pytest.mark.skipif(not SHARED.exists(), reason="LongBench's config is not beside this checkout")
def test_prompts_and_lengths_are_longbench_own():
    prompts = json.loads((SHARED / "dataset2prompt.json").read_text("utf-8"))
    lengths = json.loads((SHARED / "dataset2maxlen.json").read_text("utf-8"))
    assert {name: fact.prompt.encode() for name, fact in FACTS.items()} == {n: p.encode() for n, p in prompts.items()}
    assert {name: fact.max_new_tokens for name, fact in FACTS.items()} == lengths


def test_the_table():
    assert tasks() == ["single_doc_qa", "multidoc_qa", "summarization", "fewshot", "synthetic", "code"]
    assert datasets_of("all", FACTS) == english() == [name for task in tasks() for name in datasets_of(task, FACTS)]
    assert (len(english()), len(FACTS), sum(FACTS[name].records for name in english())) == (16, 21, 3750)
    assert {fact.metric for fact in FACTS.values()} <= set(metrics.names())
    unwrapped = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
    assert {name for name, fact in FACTS.items() if not fact.chat} == unwrapped
    assert {name for name, fact in FACTS.items() if fact.first_line} == {"trec", "triviaqa", "samsum", "lsht"}
    assert [name for name, fact in FACTS.items() if fact.stop_at_newline] == ["samsum"]


def test_the_chinese_facts_are_the_official_codes_and_apart_from_the_english():
    # THUDM/LongBench: eval.py, `dataset2metric`; config/dataset2maxlen.json; task.md.
    assert {name: (FACTS[name].metric, FACTS[name].max_new_tokens, FACTS[name].records) for name in CHINESE} == {
        "multifieldqa_zh": ("qa_f1_zh", 64, 200),
        "dureader": ("rouge_zh", 128, 200),
        "vcsum": ("rouge_zh", 512, 200),
        "lsht": ("classification", 64, 200),
        "passage_retrieval_zh": ("retrieval_zh", 32, 200),
    }
    assert (
        datasets_of("chinese", FACTS) == [*CHINESE] == [name for name, fact in FACTS.items() if fact.language == "zh"]
    )
    assert not set(english()) & set(CHINESE)


def test_tasks_are_datasets_of_longbenchs_and_of_the_users():
    facts = load_facts({"mine": {**MINE, "task": "code"}, "alone": MINE, "grouped": {**MINE, "task": "my_group"}})
    assert datasets_of("code", facts) == ["lcc", "repobench-p", "mine"]
    assert datasets_of("alone", facts) == ["alone"]
    assert datasets_of("my_group", facts) == ["grouped"]
    assert task_names(facts) == [*tasks(), "chinese", "my_group"]
    assert datasets_of("all", facts) == english()
    assert datasets_of("all", facts, ["trec", "mine"]) == ["trec", "mine"]
    assert (facts["alone"].chat, facts["alone"].first_line, facts["alone"].records) == (True, False, None)
    with pytest.raises(LazyBenchError, match=r"^unknown task or dataset 'hotpot_qa': did you mean 'hotpotqa'\?$"):
        datasets_of("hotpot_qa", facts)


def test_a_dataset_like_one_of_longbenchs_has_its_facts():
    facts = load_facts({"mine": {"like": "lcc", "max_new_tokens": 8}, "other": {"like": "trec"}})
    assert facts["mine"] == replace(facts["lcc"], name="mine", max_new_tokens=8, records=None)
    # A task is what the data has of it where LongBench is not.
    assert datasets_of("code", facts, ["mine", "other"]) == ["mine"]
    assert datasets_of("code", facts, ["mine", "trec"]) == ["lcc", "repobench-p", "mine"]
    assert datasets_of("synthetic", facts, ["mine"]) == ["passage_count", "passage_retrieval_en"]


@pytest.mark.parametrize(
    ("name", "facts", "wrong"),
    [
        ("../mine", MINE, "dataset name"),
        ("lcc", MINE, "dataset name"),
        ("mine", None, "'prompt', 'max_new_tokens', and 'metric'"),
        ("mine", {**MINE, "max_tokens": 3}, "max_tokens"),
        ("mine", {**MINE, "max_new_tokens": True}, "max_new_tokens"),
        ("mine", {**MINE, "metric": "qa_f2"}, "metric"),
        ("mine", {**MINE, "task": "all"}, "task"),
        ("mine", {**MINE, "task": "lcc"}, "task"),
        ("mine", {"like": "hotpot"}, "did you mean 'hotpotqa'?"),
        ("mine", {**MINE, "chat": "no"}, "chat"),
        ("mine", {**MINE, "continues": "file"}, "continues"),
        ("mine", {**MINE, "prompt": "no field"}, "prompt"),
        ("mine", {**MINE, "prompt": "{question}"}, "prompt"),
        ("mine", {**MINE, "prompt": "{input} {"}, "prompt"),
    ],
)
def test_wrong_facts_are_refused_by_name(name, facts, wrong):
    with pytest.raises(LazyBenchError) as caught:
        load_facts({name: facts})
    assert wrong in str(caught.value)
    assert name in str(caught.value)
