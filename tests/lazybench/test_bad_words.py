"""Flags that there are not, and words that cannot be read, are no text or are too long, cost one line."""

from __future__ import annotations

import os

import pytest
from bad_lines import GROUPS, LETTERS, SETTINGS, TASKS, check, check_each, lines, names, words
from hypothesis import strategies as st

_ODD = "äßé日本語💥\u202e\u200b\x01\x07\x1b\x7f\u2028"


def _not_to_be_read():
    endings = ("[1,", "{a:", "'x", '"x', "x'", 'x"', "[1]]", "(", ")", "}", ",", "a,", ",a", "a,,b", "=x", "f(1)", "${")
    behind = ("", ":1", " 1", ".=1", "..x=1", "[0]=1", "/x/=1", " =1")
    return st.one_of(
        words(SETTINGS, "=", endings),
        words(("=", "=x", "+", "~", "++", "+=x", "~=x", "==", ",", "=,", "", " ", "-", "/")),
        words(SETTINGS, behind),
        words((".", "/", "../", " "), SETTINGS, "=1"),
        words([*TASKS, *GROUPS["method"]]),
    )


def _odd_signs():
    odd = st.tuples(st.text(_ODD + LETTERS, min_size=1, max_size=20), st.sampled_from(_ODD)).map("".join)
    return st.one_of(
        words(SETTINGS, "=", odd),
        words(odd, "=", names),
        words(SETTINGS, odd, "=1"),
        words(odd),
        words("task='", odd, "'"),
    )


def _not_text():
    """Bytes that are not UTF-8, as Python hands them over."""
    junk = st.lists(st.integers(0x80, 0xBF), min_size=1, max_size=9).map(lambda found: os.fsdecode(bytes(found)))
    quoted = words(SETTINGS, "='", junk, "'")
    return st.one_of(
        words(SETTINGS, "=", junk), quoted, words(junk, ("", "=1")), words(("--", "model.path=/tmp/"), junk)
    )


def _long_words():
    long = st.builds(lambda letter, count: letter * count, st.sampled_from(LETTERS), st.integers(300, 5000))
    begun = ("task=", "method=", "model.limit=", "", "--", "model.path=/", "model.dtype=", "method._target_=", "~")
    return st.one_of(
        words((*begun, "+experiment="), long),
        words(("", "model."), long, "=1"),
        words("task='", long, " ", long, "'"),
        words("model.limit=", long, ",1"),
        words((f"task={'[' * 300}", f"model.limit={'9' * 5000}")),
    )


def _unknown_flags():
    named = ("--cfg", "--info", "--config-name", "-cn", "--experimental-rerun", "--package")
    return st.one_of(
        words("--", names, ("", "=3")),
        st.tuples(names.map("--{}".format), st.just("3")),
        st.tuples(st.sampled_from(named), names),
        st.tuples(st.sampled_from(["--config-dir", "--config-path"]), names.map("/{}".format)),
        words(
            (
                "-z",
                "-q9",
                "--task=code",
                "-task=code",
                "--cfg",
                "--resolve",
                "-c",
                "--multirun=3",
                "-hx",
                "--run=1",
                "-sc",
            )
        ),
        lines(("--task", "code"), ("--cfg", "job", "-m"), ("--co", "x"), ("--config-name", "speed")),
        lines(("--run", "--multirun"), ("--cfg", "job", "--info")),
    )


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "broken",
    [_not_to_be_read, _odd_signs, _not_text, _long_words, _unknown_flags],
    ids=lambda broken: broken.__name__.strip("_"),
)
def test_a_bad_word_costs_one_line(run, tmp_path, cwd, broken, count):
    check_each(broken(), run, cwd, count)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--foo"], "there is no flag '--foo'"),
        (["--task=code"], "settings stand without dashes, task=code"),
        (["--task", "code"], "settings stand without dashes, task=VALUE"),
        (["--config-dir", "/nowhere"], "'/nowhere' not found"),
        (["--cfg", "job", "-m"], "Only one of --run, --multirun, --cfg"),
        (["lazyllm"], "did you mean method=lazyllm?"),
        (["lcc"], "did you mean task=lcc?"),
        (["output=/home/jürgen"], "\"output='/home/jürgen'\""),
        (["task='code"], "a quote is opened"),
        (["a=[1,"], "a bracket is opened"),
        (["task=,code"], "a value is missing next to a comma"),
    ],
)
def test_the_line_says_which_word_would_be_right(run, cwd, line, says):
    assert says in check(tuple(line), *run(*line), cwd)
