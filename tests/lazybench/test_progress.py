"""What a command says while one waits, and what a sweep ends with."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from support import LAZY, one_line

SAMPLE = "data sample"
# Whether torch was there already when a command printed its first line.
FIRST = """
import sys
from lazybench.cli import commands

class Out:
    loaded = None

    def write(self, text):
        if self.loaded is None:
            self.loaded = text, "torch" in sys.modules
        return len(text)

    def flush(self):
        pass

stdout, sys.stdout = sys.stdout, Out()
try:
    commands.start(sys.argv[1:])
except BaseException:
    pass
print(*sys.stdout.loaded, sep="|", file=stdout)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run", "method=fastkv", "task=code", "shard=1/2"],
            f"model none, {SAMPLE}, method fastkv, task code, shard 1/2",
        ),
        (["run", "-m", "method=fastkv,gemfilter", "task=code"], "checking 2 jobs before any starts"),
        (["plan", "task=code"], "checking 1 job before any starts"),
        (["match", "method=gemfilter"], f"model none, {SAMPLE}, method gemfilter, task all"),
        (["calibrate"], f"model none, {SAMPLE}, task all"),
        (["speed"], "model none, method lazyllm"),
        (["map", "method=lazyllm,fastkv", "task=code"], "model none, methods lazyllm, fastkv"),
    ],
)
def test_the_first_line_does_not_wait_for_torch(words, said, tmp_path):
    words += ["model.path=nowhere.gguf", "model.name=none"]
    code = subprocess.run(
        [sys.executable, "-c", FIRST, *words], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
    )
    assert code.stdout == f"{said}|False\n", code.stderr


def test_a_report_says_at_once_what_it_reads(lazybench, tmp_path):
    code, out, err = lazybench("report", f"runs={tmp_path}")
    assert out == f"reading the runs in {tmp_path}\n"
    assert str(tmp_path) in one_line(code, err)


def test_a_sweep_ends_with_its_runs_side_by_side(run):
    code, out, err = run("-m", *LAZY[:1], "method.schedule=[1:0.6],[1:0.3]", "task=2wikimqa,hotpotqa")
    assert code == 0, err
    header, rule, *rows = out.rstrip().splitlines()[-6:]
    assert header.split()[:2] == ["method", "task"]
    assert set(rule) == {"-", " "}
    assert [(row.split()[1], re.search(r"schedule=(\S+)", row)[1]) for row in rows] == [
        ("2wikimqa", "1:0.6"),
        ("hotpotqa", "1:0.6"),
        ("2wikimqa", "1:0.3"),
        ("hotpotqa", "1:0.3"),
    ]
    assert "score" in header
    # The same numbers as each run said by itself.
    scores = re.findall(r"^(?:2wikimqa|hotpotqa) +2 +(\S+)", out, re.MULTILINE)
    place = header.index("score")
    assert [row[: place + len("score")].split()[-1] for row in rows] == scores


def test_a_single_run_is_not_compared(run):
    code, out, err = run("-m", *LAZY)
    assert code == 0, err
    assert not re.search(r"^method +", out, re.MULTILINE)


def test_bars_on_a_terminal_and_none_elsewhere(run, monkeypatch, capsys):
    assert "warm-up" not in run(*LAZY)[2]
    for stream in (sys.stderr, sys.__stderr__):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    err = run(*LAZY, "rerun=true")[2]
    assert "warm-up" in err
    assert "Loading weights" in err


def test_a_refusal_on_a_terminal_is_still_one_line(run, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, _, err = run(*LAZY, "model.device=xpu")
    assert "model.device=xpu is not available" in one_line(code, err)


def test_calibrate_says_beforehand_how_long_it_takes(calibrate):
    code, out, err = calibrate("confirm=false")
    assert code == 0, err
    (said,) = re.findall(r"^about \d+ minutes in all.*$", out, re.MULTILINE)
    assert "of search" in said
    assert out.index(said) < out.index("saved in")
    assert "to score it" not in said
