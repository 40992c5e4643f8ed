"""What a full, read-only or vanished disk does to a run: one line, and what was written stays valid."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import LAZY, folders, rows

MANY = (*LAZY, "task=multidoc_qa", "data.limit=6", "timing.paired=false", "timing.warmup=0")  # 18 records


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A small file system of its own at `place`."""
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def one_line(code: int, err: str) -> str:
    """What the command says at its end, past the progress bars."""
    (line,) = [line for line in err.replace("\r", "\n").splitlines() if line.startswith("lazybench: ")]
    assert code == 2
    assert "Traceback" not in err
    return line


@pytest.mark.parametrize("size", ["4k", "12k", "20k"])
def test_a_full_disk_costs_the_record_in_hand_alone(run, tmp_path, size):
    place = tmp_path / "small"
    with mounted(place, f"size={size}"):
        code, _, err = run(*MANY, output="small/runs")
        assert "No space left on device" in one_line(code, err)
        assert not list(place.rglob(".*.json.*"))  # nothing half-written stays
        journals = [path.read_text().splitlines(keepends=True) for path in place.rglob("predictions.jsonl")]
        written = [json.loads(line) for lines in journals for line in lines if line.endswith("\n")]
        assert len(written) < 18
        subprocess.run(["mount", "-o", "remount,size=10m", str(place)], check=True)
        code, out, _ = run(*MANY, output="small/runs")
        assert code == 0
        assert ("records are done" in out) == bool(written)
        found = rows(folders(place / "runs")[0])
        assert len({(row["dataset"], row["_id"]) for row in found}) == len(found) == 18
        assert found[: len(written)] == written


def test_a_read_only_folder(run, lazybench, tmp_path):
    place = tmp_path / "small"
    with mounted(place, "size=1m"):
        run(*LAZY, "timing.paired=false", "timing.warmup=0", output="small/runs")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        for words in ((), ("-m",)):
            code, _, err = run(*words, *LAZY, "data.limit=1", output="small/runs")
            assert "read-only file system" in one_line(code, err)
        code, _, err = lazybench("report", f"runs={place / 'runs'}", f"output={place / 'report'}")
        assert "Read-only file system" in one_line(code, err)
