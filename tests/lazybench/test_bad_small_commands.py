"""Bad words of `status`, `list`, `report`, `score`, `plan`, `speed` and `map`, and of no command, cost one line."""

from __future__ import annotations

import os

import pytest
from bad_lines import check, check_each, lines, misspelt, names
from hypothesis import strategies as st

_LONG = "x" * 300


def _bad_words():
    odd = names | names.map("{}=1".format) | names.map("--{}".format)
    odd |= st.sampled_from([_LONG, "", "ä", os.fsdecode(b"\xff"), "a\nb", "\x1b[31m", "-z"])
    commands = ("run", "plan", "status", "list", "report", "score", "speed", "map")
    nowhere = names.map("/{}".format)
    lengths = ("[]", "[1]", "[-3]", "[x]", "1", "", "[1.5]", "1,2", "null")
    return st.one_of(
        st.tuples(odd),
        st.tuples(misspelt(commands), st.just("task=code")),
        st.tuples(st.sampled_from(["list", "plan", "status", "report", "speed", "map"]), odd),
        st.tuples(st.just("score"), st.just("/dev/null"), odd.map(lambda word: word or "b")),
        st.tuples(st.just("score"), nowhere),
        st.tuples(st.just("score"), st.just("/dev/null"), st.just("--dataset"), names),
        st.tuples(st.sampled_from(["status", "report"]), nowhere.map("runs={}".format)),
        st.tuples(st.just("plan"), names.map("task={}".format)),
        st.tuples(st.just("plan"), st.just("task=code"), names.map("method=baseline,{}".format)),
        st.tuples(st.just("speed"), names.map("method={}".format) | nowhere.map("text={}".format)),
        st.tuples(st.just("map"), st.just("task=code"), names.map("method=lazyllm,{}".format)),
        st.tuples(st.just("map"), nowhere.map("text={}".format) | names.map("task={}".format)),
        lines(("map",), ("map", "task=code", "text=/dev/null"), ("map", "text=/dev/null"), ("map", "task=code,lcc")),
        lines(*[("map", "task=code", f"method={name}") for name in ("baseline", "random_drop", "lazyllm,gemfilter")]),
        lines(*[("map", "task=code", word) for word in ("new_tokens=0", "output=", "output=/", "output=/dev/null/x")]),
        lines(("map", "task=code", "--config-name", "config"), ("map", "task=code", "method.schedule=9:0.5,3:x")),
        lines(("score",), ("score", _LONG), ("score", "/dev/null"), ("score", "/"), ("score", "/dev/null", "--output")),
        lines(("report", f"runs={_LONG}"), ("report", "runs="), ("report", "output="), ("report", "runs=/dev/null")),
        lines(*[("speed", f"lengths={value}") for value in lengths]),
        lines(*[("speed", f"new_tokens={value}") for value in ("1", "0", "x", "null", "1e400")]),
        lines(*[("speed", f"repeats={value}") for value in ("0", "-1", "x", "nan")]),
        lines(("speed", "task=code"), ("speed", "+experiment=table1"), ("speed", "--config-name", "config")),
        lines(("speed", "output=a.csv", "profile=a.csv"), ("speed", "text=a.txt", "output=a.txt")),
        lines(("speed", "output=/dev/null/x/y.csv"), ("plan", "--cfg", "job"), ("report", "calibrated=maybe")),
    )


@pytest.mark.parametrize("count", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_bad_words_of_other_commands_cost_one_line(lazybench, cwd, count):
    check_each(_bad_words(), lazybench, cwd, count)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("status", "rns=x"), "unknown setting 'rns': did you mean 'runs'?"),
        (("status", "results"), "'results' is not key=value: choose one of: runs="),
        (("status", "--rnus=x"), "there is no flag '--rnus': did you mean '--runs'?"),
        (("report", "calibrated=maybe"), "calibrated"),
        (("list", "--config"), "--config"),
        (("list", "more"), "'more' is one word too many: lazybench list --help shows what there is"),
        (("speed", "lengths=1"), "lengths=1 is out of range: at least 2"),
        (("stats",), "unknown command 'stats': did you mean 'status'?"),
    ],
)
def test_the_line_says_what_would_be_right(lazybench, cwd, line, says):
    assert says in check(line, *lazybench(*line), cwd)
