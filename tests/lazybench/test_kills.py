"""Runs that are killed with SIGKILL and started again: every record once, and the answers of an undisturbed run."""

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
    small = "model.name=tiny model.chat=null model.limit=900 data.tokens=512 timing.warmup=0 timing.paired=false"
    return ["run", f"model.path={tiny_model}", *small.split(), "task=2wikimqa", "method.schedule=[1:0.6]", "trace=true"]


@pytest.fixture
def calm(lazybench, words):
    """Run undisturbed; gives the exit code."""
    return lambda output, *more: lazybench(*words, f"output={output}", *more)[0]


@pytest.fixture
def serve(words, tmp_path):
    """Start a run and kill it until it is done or has been killed `most` times; returns the kills."""
    note = tmp_path / "kills"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SERVER.parents[2])}

    def call(how: str, most: int, output: Path, *more: str) -> int:
        command = [sys.executable, str(SERVER), how, str(note), str(most), *words, f"output={output}", *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0
        return len(note.read_text().splitlines()) if note.exists() else 0

    return call


def answers(output: Path) -> list[tuple[str, str, str, float]]:
    """What was predicted, record by record."""
    (folder,) = (folder for folder in folders(output) if not folder.name.startswith("."))
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {"config.yaml", "environment.json", "predictions.jsonl", "traces.jsonl", "scores.json"}
    found = rows(folder)
    assert len({(row["dataset"], row["_id"]) for row in found}) == len(found)
    assert len((folder / "traces.jsonl").read_text().splitlines()) == len(found)
    return [(row["dataset"], row["_id"], row["prediction"], row["score"]) for row in found]


def test_a_shard_killed_at_every_write(calm, serve, tmp_path):
    assert calm(tmp_path / "calm", "data.limit=2") == 0
    assert calm(tmp_path / "runs", "data.limit=2", "shard=1/2") == 0
    assert serve("writes:1", 1000, tmp_path / "runs", "data.limit=2", "shard=2/2") > 16
    assert answers(tmp_path / "runs") == answers(tmp_path / "calm")


def test_a_rerun_killed_at_every_third_write(calm, serve, tmp_path):
    assert calm(tmp_path / "runs", "data.limit=1") == 0
    before = answers(tmp_path / "runs")
    assert serve("writes:3", 1000, tmp_path / "runs", "data.limit=1", "rerun=true") > 4
    assert answers(tmp_path / "runs") == before
    kept = [folder for folder in folders(tmp_path / "runs") if folder.name.startswith(".")]
    assert all(len(rows(folder)) == 1 for folder in kept)


def test_kills_at_random_moments(calm, serve, tmp_path):
    more, kills, number = ("task=multidoc_qa", "data.limit=2"), 0, 0
    assert calm(tmp_path / "calm", *more) == 0
    while kills < 10:
        number += 1
        kills = serve("random:1", 10, tmp_path / f"runs{number}", *more)
        assert answers(tmp_path / f"runs{number}") == answers(tmp_path / "calm")
        assert number < 10, "hardly any run was killed"
