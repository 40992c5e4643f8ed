"""SIGINT and SIGTERM end a command in one line; what it wrote is whole, and the same command continues."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support import LAZY, small_run

from lazybench.store.journal import PREDICTIONS

_ROOT = Path(__file__).resolve().parents[2]
_BOTH = (signal.SIGINT, signal.SIGTERM)


def _start(cwd: Path, *words: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "lazybench", *map(str, words)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # As from a terminal: what a shell starts in the background ignores Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def _stop(process: subprocess.Popen, number: int, onward: str) -> None:
    """Send a signal and check how the command ends."""
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    text = err.decode().replace("\r", "\n")
    assert process.returncode == 130, text
    assert text.rstrip().splitlines()[-1] == f"lazybench: stopped; the same command {onward}", text


def _records(output: Path) -> Counter[str]:
    """The number of whole records in each journal below `output`, each there once."""
    records: Counter[str] = Counter()
    for path in output.rglob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]  # the last may be cut short
        assert len({(row["dataset"], row["_id"]) for row in rows}) == len(rows)
        records[path.name] = len(rows)
    return records


@pytest.fixture
def words(tiny_model):
    """A run of the tiny model."""
    own = [*LAZY, "data.limit=6", "batch=1", "timing.warmup=0"]
    return ["run", *small_run(tiny_model, "runs", own), *own]


@pytest.mark.slow
def test_a_run_that_was_stopped_continues(tmp_path, words):
    for number in _BOTH:
        process, begun = _start(tmp_path, *words), _records(tmp_path)[PREDICTIONS]
        while _records(tmp_path)[PREDICTIONS] == begun:
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.01)
        _stop(process, number, "continues where it stopped")
    process = _start(tmp_path, *words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    assert b"resuming" in out
    assert sorted(_records(tmp_path).values()) == [6, 6, 6]  # answers, the unmodified model's, and times
