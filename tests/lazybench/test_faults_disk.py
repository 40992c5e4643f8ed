"""Runs on a full or read-only disk end with one line, and what was written stays valid."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from marks import slow
from support import LAZY, folders, one_line, rows

QUICK = (*LAZY, "task=multidoc_qa", "timing.per_dataset=0")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a small file system at `folder`."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    mount = subprocess.run(command, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"no file system can be mounted here: {mount.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(("size", "limit"), [("4k", 1), slow("12k", 6), slow("20k", 6)])
def test_a_full_disk_costs_only_the_record_that_is_written(run, tmp_path, size, limit):
    small, words, count = tmp_path / "small", (*QUICK, f"data.limit={limit}"), 3 * limit
    with mounted(small, f"size={size}"):
        code, _, err = run(*words, output="small/runs")
        assert code == 2
        assert "No space left on device" in err.splitlines()[-1]  # below the bar
        assert not list(small.rglob(".*.json.*"))  # no partial file
        journals = [path.read_text().splitlines(keepends=True) for path in small.rglob("predictions.jsonl")]
        written = [json.loads(line) for lines in journals for line in lines if line.endswith("\n")]
        assert len(written) < count
        subprocess.run(["mount", "-o", "remount,size=10m", str(small)], check=True)
        code, out, _ = run(*words, output="small/runs")
        assert code == 0
        assert ("are answered" in out) == bool(written)
        records = rows(folders(small / "runs")[0])
        assert len({(row["dataset"], row["_id"]) for row in records}) == len(records) == count
        assert records[: len(written)] == written


def test_a_read_only_folder(run, tmp_path):
    with mounted(tmp_path / "small", "ro"):
        for words in ((), ("-m",)):
            code, _, err = run(*words, *LAZY, "data.limit=1", output="small/runs")
            assert "read-only file system" in one_line(code, err)
