"""A run that is killed with SIGKILL and started again: every record once, and the answers of an uninterrupted run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import folders

SERVER = Path(__file__).with_name("kill_server.py")
pytestmark = pytest.mark.slow


def answers(output: Path) -> dict[tuple[str, str], tuple[str, float]]:
    """Prediction and score of each record, which is once in all files of its run, as are its trace and its times."""
    (folder,) = folders(output)
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


def test_a_shard_killed_at_every_write(lazybench, tiny_model, tmp_path):
    small = "model.name=tiny model.chat=null model.limit=900 data.tokens=512 timing.warmup=0 timing.per_dataset=1"
    words = ["run", f"model.path={tiny_model}", *small.split(), "task=2wikimqa", "data.limit=2", "trace=true"]
    words.append("method.schedule=[1:0.6]")
    assert lazybench(*words, f"output={tmp_path / 'calm'}")[0] == 0
    assert lazybench(*words, f"output={tmp_path / 'runs'}", "shard=1/2")[0] == 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SERVER.parents[2])}
    command = [sys.executable, SERVER, tmp_path / "kills", *words, f"output={tmp_path / 'runs'}", "shard=2/2"]
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=600)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0
    assert len((tmp_path / "kills").read_text().splitlines()) > 16
    assert answers(tmp_path / "runs") == answers(tmp_path / "calm")
