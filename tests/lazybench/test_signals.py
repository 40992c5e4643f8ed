"""SIGINT and SIGTERM, sent at any moment, end a command in one line; what it wrote stays whole."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from report_runs import write_everything
from support import LAZY

_ROOT = Path(__file__).resolve().parents[2]
_SLOWEST = 4.0  # seconds to stop; mostly one step of a generation, on a busy machine


def _start(cwd: Path, *words: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "lazybench", *map(str, words)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _listens(process: subprocess.Popen) -> bool:
    """Whether the process has got as far as to handle SIGTERM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def _has_open(process: subprocess.Popen, path: Path) -> bool:
    """Whether the process has a file open; files that it closes while they are listed are passed over."""
    for number in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(number) == str(path):
                return True
    return False


def _has_loaded(process: subprocess.Popen, library: str) -> bool:
    """Whether the process has begun to load a library."""
    return _listens(process) and library in Path(f"/proc/{process.pid}/maps").read_text()


def _await(process: subprocess.Popen, condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < end
        time.sleep(0.005)


def _stop(process: subprocess.Popen, number: int, onward: str) -> None:
    """Send a signal and check how the command ends."""
    process.send_signal(number)
    sent = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < _SLOWEST
    assert process.returncode == 128 + number, err.decode()
    text = err.decode().replace("\r", "\n")
    assert "Traceback" not in text
    assert "Error executing job" not in text
    said = [line for line in text.splitlines() if line.startswith("lazybench: ")]
    assert said == [f"lazybench: stopped; the same command {onward}"], text
    assert text.rstrip().splitlines()[-1] == said[0]


def _journals_hold(output: Path) -> int:
    """Check every journal below `output`; returns the number of whole records."""
    records = 0
    for path in output.rglob("*.jsonl"):
        lines = path.read_bytes().split(b"\n")
        rows = [json.loads(line) for line in lines[:-1]]  # the last may be cut short
        keys = [(row["dataset"], row["_id"]) for row in rows]
        assert len(set(keys)) == len(keys)
        records += len(rows)
    return records


@pytest.fixture
def words(tiny_model):
    """A run of the tiny model that takes minutes if nobody stops it."""
    settings = [f"model.path={tiny_model}", "model.name=tiny", "model.chat=null", "model.limit=900", "data.tokens=512"]
    # Other work on this machine is no part of these tests: it would have each pass taken four times.
    settings += ["data.limit=40", "timing.warmup=2", "timing.cpu_share=0", "task=all"]
    return ["run", *settings, "output=runs", *LAZY]


_BOTH = (signal.SIGINT, signal.SIGTERM)
_ONWARD = "goes on where it stopped"


@pytest.mark.parametrize("library", ["", "yaml", "libtorch_cpu"])
@pytest.mark.parametrize("number", _BOTH)
def test_while_importing(tmp_path, words, number, library):
    process = _start(tmp_path, *words)
    _await(process, lambda: _has_loaded(process, library))
    _stop(process, number, _ONWARD)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_while_generating_then_the_same_command_goes_on(tmp_path, words):
    words = [*words, "task=2wikimqa", "data.limit=4"]
    for number in _BOTH:
        process = _start(tmp_path, *words)
        begun = _journals_hold(tmp_path)
        _await(process, lambda: _journals_hold(tmp_path) > begun)  # noqa: B023
        _stop(process, number, _ONWARD)
    process = _start(tmp_path, *words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    assert b"going on in" in out
    assert _journals_hold(tmp_path) == 4


@pytest.mark.slow
def test_while_tracing(tmp_path, words):
    process = _start(tmp_path, *words, "task=2wikimqa", "data.limit=6", "trace=true")
    _await(process, lambda: any(path.stat().st_size for path in tmp_path.rglob("traces.jsonl")))
    _stop(process, signal.SIGINT, _ONWARD)
    assert _journals_hold(tmp_path) >= 7


@pytest.mark.slow
def test_a_sweep_stops_as_a_whole(tmp_path, words):
    process = _start(tmp_path, words[0], "-m", *words[1:], "timing.paired=true,false")
    _await(process, lambda: _journals_hold(tmp_path) > 0)
    _stop(process, signal.SIGINT, _ONWARD)
    assert len(list(tmp_path.rglob("predictions.jsonl"))) == 1


@pytest.mark.slow
def test_speed(tmp_path, words):
    process = _start(tmp_path, "speed", *words[1:5], *LAZY, "lengths=[512]", "repeats=1000", "output=speed.csv")
    said = b""
    while b"512 tokens" not in said:  # the progress of its passes
        said += (more := os.read(process.stderr.fileno(), 4096))
        assert more, said.decode()
    _stop(process, signal.SIGTERM, "starts anew")
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_report_leaves_the_earlier_one(tmp_path):
    write_everything(tmp_path / "runs")
    report = ("report", "runs=runs", "output=out")
    out, err = _start(tmp_path, *report).communicate(timeout=120)
    assert b"written to out" in out, err.decode()
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    process = _start(tmp_path, *report)
    _await(process, lambda: any(tmp_path.glob(".out.*.new/*")))
    _stop(process, signal.SIGINT, "starts anew")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_score_leaves_no_half_written_file(tmp_path):
    line = {"prediction": "word " * 200, "answers": ["word " * 200], "all_classes": None, "dataset": "gov_report"}
    (tmp_path / "many.jsonl").write_text((json.dumps(line) + "\n") * 3000)
    process = _start(tmp_path, "score", "many.jsonl", "--output", "scored.jsonl")
    _await(process, lambda: _has_open(process, tmp_path / "many.jsonl"))
    _stop(process, signal.SIGINT, "starts anew")
    assert [path.name for path in tmp_path.iterdir()] == ["many.jsonl"]


def test_who_asks_twice_is_heard(tmp_path, words):
    process = _start(tmp_path, *words)
    _await(process, lambda: _listens(process))
    process.send_signal(signal.SIGTERM)
    _stop(process, signal.SIGTERM, _ONWARD)


def test_in_the_background_of_a_shell_ctrl_c_is_for_others(tmp_path):
    script = f"{sys.executable} -m lazybench speed +nothing=1 & "
    script += "until readlink /proc/$!/exe | grep -q python; do :; done; kill -INT $!; wait $!"
    done = subprocess.run(["sh", "-c", script], cwd=_ROOT, capture_output=True, timeout=60)
    assert done.returncode == 2
    assert b"there is no setting 'nothing'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_at_any_moment(tmp_path, words, seed):
    chance = random.Random(seed)
    sweep = ["-m", "timing.paired=true,false"] if chance.random() < 0.3 else []
    process = _start(tmp_path, words[0], *sweep, *words[1:], "trace=true", "task=code", "data.limit=2")
    _await(process, lambda: _listens(process))
    time.sleep(chance.uniform(0, 9))
    if any(tmp_path.rglob("scores.json")):  # it may be done before the signal comes
        process.send_signal(chance.choice(_BOTH))
        assert b"Traceback" not in process.communicate(timeout=60)[1]
        assert process.returncode in (0, 130, 143)
    else:
        _stop(process, chance.choice(_BOTH), _ONWARD)
    _journals_hold(tmp_path)
