"""LongBench's facts, and those of a user's datasets."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lazybench
from lazybench import metrics
from lazybench.data.facts import datasets_of, english, load_facts, task_names, tasks
from lazybench.errors import LazyBenchError

SHARED = Path(__file__).parents[2].parent / "shared/longbench"
MINE = {"prompt": "{context}\nQ: {input}", "max_new_tokens": 8, "metric": "qa_f1"}


@pytest.mark.skipif(not SHARED.exists(), reason="LongBench's config is not beside this checkout")
def test_prompts_and_lengths_are_longbench_own():
    facts = load_facts()
    prompts = json.loads((SHARED / "dataset2prompt.json").read_text("utf-8"))
    lengths = json.loads((SHARED / "dataset2maxlen.json").read_text("utf-8"))
    assert {name: of.prompt.encode() for name, of in facts.items()} == {n: p.encode() for n, p in prompts.items()}
    assert {name: of.max_new_tokens for name, of in facts.items()} == lengths


def test_the_table():
    facts = load_facts()
    assert tasks() == ["single_doc_qa", "multidoc_qa", "summarization", "fewshot", "synthetic", "code"]
    english = datasets_of("all", facts)
    assert english == [name for task in tasks() for name in datasets_of(task, facts)]
    assert len(english) == 16
    assert len(facts) == 21
    assert sum(facts[name].records for name in english) == 3750
    assert {of.metric for of in facts.values()} <= set(metrics.names())
    assert {name for name, of in facts.items() if not of.chat} == {
        "trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"
    }  # fmt: skip
    assert {name for name, of in facts.items() if of.first_line} == {"trec", "triviaqa", "samsum", "lsht"}
    assert [name for name, of in facts.items() if of.stop_at_newline] == ["samsum"]
    assert [name for name, of in facts.items() if of.language == "zh"] == datasets_of("chinese", facts)
    assert not {"zh"} & {facts[name].language for name in english}


def test_published_baselines_cover_the_table():
    data = json.loads((Path(lazybench.__file__).parent / "data" / "longbench.json").read_text("utf-8"))
    for scores in data["baselines"].values():
        assert list(scores) == datasets_of("all", load_facts())


def test_datasets_of_a_task_a_dataset_and_a_typo():
    facts = load_facts()
    assert datasets_of("code", facts) == ["lcc", "repobench-p"]
    assert datasets_of("dureader", facts) == ["dureader"]
    with pytest.raises(LazyBenchError, match=r"^unknown task or dataset 'hotpot_qa': did you mean 'hotpotqa'\?$"):
        datasets_of("hotpot_qa", facts)


def test_a_user_dataset_joins_its_task_but_not_longbench():
    facts = load_facts({"mine": {**MINE, "task": "code"}, "alone": MINE})
    assert datasets_of("code", facts) == ["lcc", "repobench-p", "mine"]
    assert datasets_of("alone", facts) == ["alone"]
    assert datasets_of("all", facts) == datasets_of("all", load_facts())
    assert (facts["alone"].chat, facts["alone"].first_line, facts["alone"].records) == (True, False, None)


def test_a_group_of_the_users_is_a_task():
    facts = load_facts({"one": {**MINE, "task": "my_group"}, "two": {**MINE, "task": "my_group"}, "alone": MINE})
    assert task_names(facts) == [*tasks(), "chinese", "my_group"]
    assert datasets_of("my_group", facts) == ["one", "two"]
    with pytest.raises(LazyBenchError, match=r"did you mean 'my_group'\?$"):
        datasets_of("my_grop", facts)


def test_a_dataset_like_one_of_longbenchs_has_its_facts():
    facts = load_facts({"mine": {"like": "lcc", "max_new_tokens": 8}})
    assert facts["mine"] == replace(facts["lcc"], name="mine", max_new_tokens=8, records=None)
    assert datasets_of("code", facts) == ["lcc", "repobench-p", "mine"]


def test_a_task_is_what_the_data_has_of_it_where_longbench_is_not():
    facts = load_facts({"mine": {"like": "lcc"}, "other": {"like": "trec"}})
    assert datasets_of("code", facts, ["mine", "other"]) == ["mine"]
    assert datasets_of("code", facts, ["mine", "trec"]) == ["lcc", "repobench-p", "mine"]
    assert datasets_of("synthetic", facts, ["mine"]) == ["passage_count", "passage_retrieval_en"]
    assert datasets_of("chinese", facts, ["mine"]) == datasets_of("chinese", facts)


def test_all_is_what_the_data_has():
    facts = load_facts({"mine": MINE})
    assert datasets_of("all", facts) == english()
    assert datasets_of("all", facts, ["trec", "mine"]) == ["trec", "mine"]
    assert datasets_of("fewshot", facts, ["trec", "mine"]) == ["trec", "triviaqa", "samsum"]


@pytest.mark.parametrize("task", ["other", "lcc", "mine"])
def test_a_group_is_not_called_like_a_dataset(task):
    with pytest.raises(LazyBenchError, match=r"dataset 'mine': task '.*' is a dataset's name: choose another"):
        load_facts({"other": MINE, "mine": {**MINE, "task": task}})


@pytest.mark.parametrize(
    ("name", "facts", "message"),
    [
        ("../mine", MINE, "use letters, digits"),
        ("", MINE, "use letters, digits"),
        ("lcc", MINE, "is LongBench's own"),
        ("all", MINE, "is LongBench's own"),
        ("code", MINE, "is LongBench's own"),
        ("chinese", MINE, "is LongBench's own"),
        ("mine", None, "its facts must be a mapping, not NoneType"),
        ("mine", {**MINE, "max_tokens": 3}, "unknown fact 'max_tokens': did you mean 'max_new_tokens'?"),
        ("mine", {"prompt": "{input}", "metric": "count"}, "the fact 'max_new_tokens' is missing"),
        ("mine", {**MINE, "max_new_tokens": True}, "max_new_tokens must be a whole number above 0, not True"),
        ("mine", {**MINE, "max_new_tokens": 0}, "max_new_tokens must be a whole number above 0, not 0"),
        ("mine", {**MINE, "records": "many"}, "records must be a whole number above 0, not 'many'"),
        ("mine", {**MINE, "metric": "qa_f2"}, "metric 'qa_f2' is unknown: did you mean 'qa_f1'?"),
        ("mine", {**MINE, "task": "all"}, "task 'all' stands for all datasets: choose another name"),
        ("mine", {**MINE, "task": "Few-Shot"}, "LongBench's own but for its spelling: did you mean 'fewshot'?"),
        ("mine", {**MINE, "task": "Chinese"}, "LongBench's own but for its spelling: did you mean 'chinese'?"),
        ("mine", {"like": "hotpot"}, "like 'hotpot' is none of LongBench's: did you mean 'hotpotqa'?"),
        ("mine", {"like": ["lcc"]}, "like ['lcc'] is none of LongBench's"),
        ("mine", {"lik": "lcc", **MINE}, "unknown fact 'lik': did you mean 'like'?"),
        ("mine", {"like": "lcc", "metric": "qa_f2"}, "metric 'qa_f2' is unknown: did you mean 'qa_f1'?"),
        ("mine", {**MINE, "by_length": "yes"}, "by_length must be true or false, not 'yes'"),
        ("mine", {**MINE, "task": "my/group"}, "task 'my/group': use letters, digits"),
        ("mine", {**MINE, "task": [3]}, "task must be text, not [3]"),
        ("mine", {**MINE, "language": None}, "language must be text, not None"),
        ("mine", {**MINE, "chat": "no"}, "chat must be true or false, not 'no'"),
        ("mine", {**MINE, "prompt": 3}, "prompt must be text, not 3"),
        ("mine", {**MINE, "max_new_tokens": "8"}, "max_new_tokens must be a whole number above 0, not '8'"),
        ("mine", {**MINE, "task": 7}, "task must be text, not 7"),
        ("mine", {**MINE, "chat": "never"}, "chat must be true or false, not 'never'"),
        ("mine", {**MINE, "prompt": [3]}, "prompt must be text, not [3]"),
        ("mine", {**MINE, "records": "${oc.env:HOME}"}, "records must be a whole number above 0, not '${oc.env:HOME}'"),
        ("mine", {**MINE, "name": "other"}, "unknown fact 'name'"),
        ("mine", {**MINE, "language": ""}, "language must be text such as 'en', not ''"),
        ("mine", {**MINE, "continues": "file"}, "continues 'file' is unknown: "),
        ("mine", {**MINE, "prompt": "no field"}, "prompt must hold {context} or {input}"),
        ("mine", {**MINE, "prompt": "{question}"}, "prompt may hold no fields but {context} and {input}"),
        ("mine", {**MINE, "prompt": "{input!r}"}, "prompt may hold no fields but {context} and {input}"),
        ("mine", {**MINE, "prompt": "{input} {"}, "prompt is no template"),
    ],
)
def test_wrong_facts_are_one_line(name, facts, message):
    with pytest.raises(LazyBenchError) as caught:
        load_facts({name: facts})
    assert message in str(caught.value)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["$", "${", "}", "\\", "???", "'", "\n", "\0"]) | st.text(max_size=3)))
def test_a_prompt_is_taken_as_it_stands(literals):
    prompt = "".join(literals).replace("{", "{{").replace("}", "}}") + "{context}"
    assert load_facts({"mine": {**MINE, "prompt": prompt}})["mine"].prompt == prompt
