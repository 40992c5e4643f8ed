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
def serve(tiny_model, tmp_path):
    """Start a run, with traces, and kill it until it is done or has been killed `most` times; returns the kills."""
    note = tmp_path / "kills"
    words = [
        *(f"model.path={tiny_model}", "model.name=tiny", "model.chat=null", "model.limit=900", "data.tokens=512"),
        *("timing.warmup=0", "timing.paired=false", "task=multidoc_qa", "method.schedule=[1:0.6]", "trace=true"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SERVER.parents[2])}

    def call(how: str, most: int, output: Path, *more: str) -> int:
        command = [sys.executable, str(SERVER), how, str(note), str(most), "run", *words, f"output={output}", *more]
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


def test_a_shard_killed_at_every_write(serve, tmp_path):
    few = ("task=2wikimqa", "data.limit=2")
    serve("writes", 0, tmp_path / "calm", *few)
    serve("writes", 0, tmp_path / "runs", *few, "shard=1/2")
    assert serve("writes", 1000, tmp_path / "runs", *few, "shard=2/2") > 16
    assert answers(tmp_path / "runs") == answers(tmp_path / "calm")


def test_a_rerun_killed_at_every_write(serve, tmp_path):
    few = ("task=2wikimqa", "data.limit=1")
    serve("writes", 0, tmp_path / "runs", *few)
    calm = answers(tmp_path / "runs")
    assert serve("writes", 1000, tmp_path / "runs", *few, "rerun=true") > 8
    assert answers(tmp_path / "runs") == calm
    kept = [folder for folder in folders(tmp_path / "runs") if folder.name.startswith(".")]
    assert all(len(rows(folder)) == 1 for folder in kept)


def test_kills_at_random_moments(serve, tmp_path):
    kills = serve("random:1", 0, tmp_path / "calm", "data.limit=4")
    for number in range(10):
        if (kills := serve("random:1", 10, tmp_path / f"runs{number}", "data.limit=4")) >= 10:
            break
        assert answers(tmp_path / f"runs{number}") == answers(tmp_path / "calm")
    assert kills >= 10
    assert answers(tmp_path / f"runs{number}") == answers(tmp_path / "calm")
