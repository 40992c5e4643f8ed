"""Runs that are killed with SIGKILL and started again: every record once, and the answers of an undisturbed run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import folders, rows

SERVER = Path(__file__).with_name("kill_server.py")


@pytest.fixture
def words(tiny_model, tmp_path):
    """A run of twelve records, with traces."""
    return [
        f"model.path={tiny_model}",
        "model.name=tiny",
        "model.chat=null",
        "model.limit=900",
        "data.tokens=512",
        "data.limit=4",
        "timing.warmup=1",
        "timing.cpu_share=0",
        "task=multidoc_qa",
        "method.schedule=[1:0.6]",
        "trace=true",
    ]


def serve(how: str, most: int, note: Path, *words: str) -> int:
    """Start the command and kill it until it is done, or has been killed `most` times."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SERVER.parents[2])}
    command = [sys.executable, str(SERVER), how, str(note), str(most), "run", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode


def answers(output: Path) -> list[tuple[str, str, str, float]]:
    """What was predicted, record by record."""
    (folder,) = folders(output)
    assert not list(folder.glob("*-*of*.jsonl"))
    found = rows(folder)
    assert len({(row["dataset"], row["_id"]) for row in found}) == len(found)
    traces = folder / "traces.jsonl"
    assert not traces.exists() or len(traces.read_text().splitlines()) == len(found)
    assert (folder / "scores.json").is_file()
    return [(row["dataset"], row["_id"], row["prediction"], row["score"]) for row in found]


def shown(folder: Path) -> list[str]:
    """A folder's files, without what a killed start was about to write."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def kills(note: Path) -> int:
    return len(note.read_text().splitlines()) if note.exists() else 0


@pytest.mark.slow
def test_killed_at_every_write(words, tmp_path):
    note = tmp_path / "kills"
    few = [*words[:-1], "task=2wikimqa", "data.limit=1"]
    assert serve("writes", 0, note, *few, f"output={tmp_path / 'calm'}") == 0
    assert serve("writes", 1000, note, *few, f"output={tmp_path / 'runs'}") == 0
    assert kills(note) > 8
    assert answers(tmp_path / "runs") == answers(tmp_path / "calm")


@pytest.mark.slow
def test_shards_killed_at_every_write(words, tmp_path):
    note = tmp_path / "kills"
    few = ["data.limit=2" if word.startswith("data.limit=") else word for word in words]
    assert serve("writes", 0, note, *few, f"output={tmp_path / 'calm'}") == 0
    for shard in ("1/2", "2/2"):
        assert serve("writes", 1000, note, *few, f"shard={shard}", f"output={tmp_path / 'runs'}") == 0
    assert kills(note) > 16
    assert answers(tmp_path / "runs") == answers(tmp_path / "calm")


@pytest.mark.slow
def test_a_rerun_killed_at_every_write(words, tmp_path):
    note = tmp_path / "kills"
    few = [*words[:-1], "task=2wikimqa", "data.limit=1", f"output={tmp_path / 'runs'}", "trace=true"]
    assert serve("writes", 0, note, *few) == 0
    (folder,) = folders(tmp_path / "runs")
    calm, files = answers(tmp_path / "runs"), shown(folder)
    assert serve("writes", 1000, note, *few, "rerun=true") == 0
    assert kills(note) > 8
    assert answers(tmp_path / "runs") == calm
    assert shown(folder) == files


@pytest.mark.slow
def test_fifty_kills_at_random_moments(words, tmp_path):
    note, round = tmp_path / "kills", 0
    assert serve("random:1", 0, note, *words, f"output={tmp_path / 'calm'}") == 0
    while kills(note) < 50:
        assert serve("random:1", 50, note, *words, f"output={tmp_path / f'runs{round}'}") == 0
        assert answers(tmp_path / f"runs{round}") == answers(tmp_path / "calm")
        round += 1
        assert round < 100
