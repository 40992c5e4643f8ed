"""LongBench's configs, its Chinese datasets among them, and those of a user's datasets."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lazybench import metrics
from lazybench.data.dataset_configs import datasets_of, english, load_dataset_configs, task_names, tasks
from lazybench.errors import LazyBenchError

SHARED = Path(__file__).parents[2].parent / "shared/longbench"
MINE = {"prompt": "{context}\nQ: {input}", "max_new_tokens": 8, "metric": "qa_f1"}
CONFIGS = load_dataset_configs()


@pytest.mark.skipif(not SHARED.exists(), reason="LongBench's config is not beside this checkout")
def test_prompts_and_lengths_are_longbench_own():
    prompts = json.loads((SHARED / "dataset2prompt.json").read_text("utf-8"))
    lengths = json.loads((SHARED / "dataset2maxlen.json").read_text("utf-8"))
    assert {name: config.prompt for name, config in CONFIGS.items()} == prompts
    assert {name: config.max_new_tokens for name, config in CONFIGS.items()} == lengths


def test_the_table():
    assert tasks() == ["single_doc_qa", "multidoc_qa", "summarization", "fewshot", "synthetic", "code"]
    assert datasets_of("all", CONFIGS) == english() == [name for task in tasks() for name in datasets_of(task, CONFIGS)]
    assert (len(english()), len(CONFIGS), sum(CONFIGS[name].records for name in english())) == (16, 21, 3750)
    assert {config.metric for config in CONFIGS.values()} <= set(metrics.names())
    unwrapped = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
    assert {name for name, config in CONFIGS.items() if not config.chat} == unwrapped
    assert {name for name, config in CONFIGS.items() if config.first_line} == {"trec", "triviaqa", "samsum", "lsht"}
    assert [name for name, config in CONFIGS.items() if config.stop_at_newline] == ["samsum"]


def test_the_chinese_configs_are_the_official_codes_and_apart_from_the_english():
    # THUDM/LongBench: eval.py, `dataset2metric`; config/dataset2maxlen.json; task.md.
    metric_of = {"multifieldqa_zh": "qa_f1_zh", "dureader": "rouge_zh", "vcsum": "rouge_zh", "lsht": "classification"}
    metric_of["passage_retrieval_zh"] = "retrieval_zh"
    assert {name: config.metric for name, config in CONFIGS.items() if config.language == "zh"} == metric_of
    assert [CONFIGS[name].max_new_tokens for name in metric_of] == [64, 128, 512, 64, 32]
    assert {CONFIGS[name].records for name in metric_of} == {200}
    assert datasets_of("chinese", CONFIGS) == [*metric_of]
    assert not set(english()) & set(metric_of)


def test_tasks_are_datasets_of_longbenchs_and_of_the_users():
    own = {"mine": {**MINE, "task": "code"}, "alone": MINE, "grouped": {**MINE, "task": "my_group"}}
    configs = load_dataset_configs(own)
    assert datasets_of("code", configs) == ["lcc", "repobench-p", "mine"]
    assert datasets_of("alone", configs) == ["alone"]
    assert datasets_of("my_group", configs) == ["grouped"]
    assert task_names(configs) == [*tasks(), "chinese", "my_group"]
    assert datasets_of("all", configs) == english()
    assert datasets_of("all", configs, ["trec", "mine"]) == ["trec", "mine"]
    assert (configs["alone"].chat, configs["alone"].first_line, configs["alone"].records) == (True, False, None)
    with pytest.raises(LazyBenchError, match=r"^unknown task or dataset 'hotpot_qa': did you mean 'hotpotqa'\?$"):
        datasets_of("hotpot_qa", configs)


def test_a_dataset_like_one_of_longbenchs_has_its_config():
    configs = load_dataset_configs({"mine": {"like": "lcc", "max_new_tokens": 8}, "other": {"like": "trec"}})
    assert configs["mine"] == replace(configs["lcc"], name="mine", max_new_tokens=8, records=None)
    # A task is what the data has of it where LongBench is not.
    assert datasets_of("code", configs, ["mine", "other"]) == ["mine"]
    assert datasets_of("code", configs, ["mine", "trec"]) == ["lcc", "repobench-p", "mine"]
    assert datasets_of("synthetic", configs, ["mine"]) == ["passage_count", "passage_retrieval_en"]


@pytest.mark.parametrize(
    ("name", "settings", "wrong"),
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
        ("mine", {**MINE, "prompt": "no field"}, "prompt"),
        ("mine", {**MINE, "prompt": "{question}"}, "prompt"),
        ("mine", {**MINE, "prompt": "{input} {"}, "prompt"),
    ],
)
def test_wrong_settings_are_refused_by_name(name, settings, wrong):
    with pytest.raises(LazyBenchError) as caught:
        load_dataset_configs({name: settings})
    assert wrong in str(caught.value)
    assert name in str(caught.value)
