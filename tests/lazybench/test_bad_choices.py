"""A method, model, data set, task or experiment that there is not costs one line."""

from __future__ import annotations

import pytest
from bad_lines import GROUPS, TASKS, check, check_each, misspelt, names, words
from hypothesis import strategies as st

from lazybench.config import CONF

_EXPERIMENTS = [path.stem for path in (CONF / "experiment").glob("*.yaml")]


def _unknown_choices():
    made = [words(f"{group}=", misspelt(found)) for group, found in GROUPS.items()]
    junk = names | names.map("[{}]".format) | st.sampled_from(["null", "", "3"])
    return st.one_of(*made, words([f"{group}=" for group in GROUPS], junk))


def _unknown_tasks():
    junk = st.sampled_from(["", "3", "'a b'", "true", "nan", "'ä'"])
    return words("task=", misspelt(TASKS) | names | junk)


def _unknown_experiments():
    unknown = words("+experiment=", misspelt(_EXPERIMENTS) | names | st.just(""))
    return unknown | words("experiment=", _EXPERIMENTS)


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "broken",
    [_unknown_choices, _unknown_tasks, _unknown_experiments],
    ids=lambda broken: broken.__name__.strip("_"),
)
def test_a_bad_choice_costs_one_line(run, tmp_path, cwd, broken, count):
    check_each(broken(), run, cwd, count)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("experiment=table1", "+experiment=table1"),
        ("task=nothing_like_it_zq", "lazybench list shows"),
        ("hydra/launcher=nothing", "there is no hydra/launcher 'nothing': choose one of: basic"),
        ("model=some/tiny-model", "no model config 'some/tiny-model': for a hub id, folder or .gguf file give"),
        ("model=some/tiny-model", "model.path=some/tiny-model and model.limit="),
        ("model=/some/folder", "model.path=/some/folder"),
        ("model=file.gguf", "model.path=file.gguf"),
        ("data=/some/records", "data=longbench data.root=/some/records"),
        ("data=lcc", "did you mean task=lcc?"),
        ("method=LazyLLM", "did you mean 'lazyllm'?"),
        ("method=[lazyllm]", "method=[lazyllm] is a list: choose one"),
        ("+experiment=table1", "the experiment sweeps over model: add -m, or set a value of each"),
    ],
)
def test_the_line_says_which_choice_would_be_right(run, cwd, word, says):
    assert says in check((word,), *run(word), cwd)
