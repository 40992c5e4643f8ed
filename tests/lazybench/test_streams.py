"""Words that are no text, and standard streams that are closed, full or that nobody reads, end in one line at most."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_lines import check

_ROOT = Path(__file__).resolve().parents[2]


def _process(*words: str | bytes, shell: str = "") -> subprocess.CompletedProcess:
    command = f'exec "$0" -m lazybench "$@" {shell}'
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "PYTHONUTF8": "1"}
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *words], capture_output=True, env=environment, timeout=120
    )


@pytest.mark.parametrize(
    "words",
    [
        (b"\xff",),
        (b"run", b"task=\xff\xfe"),
        (b"run", b"task=code", b"output='\x80'"),
        (b"score", b"/tmp/\xe9.jsonl"),
        (b"report", b"runs=\xc3\x28"),
        (b"list", b"--\xf0\x28"),
        (b"speed", b"\xed\xa0\x80=1"),
        (b"run", b"-m", b"\xc0=1,2"),
    ],
)
def test_words_that_are_not_text(cwd, words):
    done = _process(*words)
    check(tuple(word.decode(errors="replace") for word in words), done.returncode, "", done.stderr.decode(), cwd)
    assert b"is not valid UTF-8" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
@pytest.mark.parametrize("words", [("run", "nothing=1"), ("score",), ("lits",)])
def test_closed_streams(cwd, closed, words):
    done = _process(*words, shell=closed)
    check(words, done.returncode, done.stdout.decode(), done.stderr.decode(), cwd)


def test_closed_stderr_says_it_nowhere(cwd):
    done = _process("run", "nothing=1", shell="2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_output_that_nobody_takes(cwd):
    done = _process("list", shell="> /dev/full")
    check(("list",), done.returncode, done.stdout.decode(), done.stderr.decode(), cwd)
    assert b"No space left on device" in done.stderr
    assert _process("list", shell=">&-").returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "lazybench", "list"],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1
