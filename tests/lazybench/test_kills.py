"""Runs that are killed with SIGKILL and started again: every record once, and the answers of an uninterrupted run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import folders, rows

SERVER = Path(__file__).with_name("kill_server.py")
pytestmark = pytest.mark.slow


@pytest.fixture
def words(tiny_model):
    """A run with traces."""
    small = "model.name=tiny model.chat=null model.limit=900 data.tokens=512 timing.warmup=0 timing.per_dataset=1"
    return ["run", f"model.path={tiny_model}", *small.split(), "task=2wikimqa", "method.schedule=[1:0.6]", "trace=true"]


@pytest.fixture
def calm(lazybench, words):
    """Run uninterrupted; gives the exit code."""
    return lambda output, *more: lazybench(*words, f"output={output}", *more)[0]


@pytest.fixture
def serve(words, tmp_path):
    """Start a run and kill the n-th start after `n * writes` writes, until it is done; returns the kills."""
    note = tmp_path / "kills"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SERVER.parents[2])}

    def call(writes: int, output: Path, *more: str) -> int:
        command = [sys.executable, str(SERVER), str(writes), str(note), *words, f"output={output}", *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0
        return len(note.read_text().splitlines())

    return call


def answers(output: Path) -> dict[tuple[str, str], tuple[str, float]]:
    """Prediction and score of each record, which is once in all files of its run, as are its trace and its times."""
    (folder,) = (folder for folder in folders(output) if not folder.name.startswith("."))
    keys = {}
    for name in ("predictions", "traces", "times"):
        lines = [line for path in folder.glob(f"{name}*.jsonl") for line in path.read_text().splitlines()]
        written = [json.loads(line) for line in lines]
        keys[name] = {(row["dataset"], row["_id"]): (row.get("prediction"), row.get("score")) for row in written}
        assert len(keys[name]) == len(written)
    assert keys["traces"].keys() == keys["predictions"].keys() > keys["times"].keys()
    assert len(keys["times"]) == 1
    assert (folder / "scores.json").exists()
    return keys["predictions"]


def test_a_shard_killed_at_every_write(calm, serve, tmp_path):
    assert calm(tmp_path / "calm", "data.limit=2") == 0
    assert calm(tmp_path / "runs", "data.limit=2", "shard=1/2") == 0
    assert serve(1, tmp_path / "runs", "data.limit=2", "shard=2/2") > 16
    assert answers(tmp_path / "runs") == answers(tmp_path / "calm")


def test_a_rerun_killed_at_every_third_write(calm, serve, tmp_path):
    assert calm(tmp_path / "runs", "data.limit=2") == 0
    before = answers(tmp_path / "runs")
    assert serve(3, tmp_path / "runs", "data.limit=2", "rerun=true") > 4
    assert answers(tmp_path / "runs") == before
    kept = [folder for folder in folders(tmp_path / "runs") if folder.name.startswith(".")]
    assert all(len(rows(folder)) == 2 for folder in kept)
