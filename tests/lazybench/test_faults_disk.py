"""What a full, read-only or vanished disk does to a run: one line, and what was written stays valid."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import LAZY, folders, rows

MANY = (*LAZY, "task=multidoc_qa", "data.limit=6")  # 18 records


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


def one_line(err: str) -> str:
    """What the command says at its end, past the progress bars."""
    (line,) = [line for line in err.replace("\r", "\n").splitlines() if line.startswith("lazybench: ")]
    assert "Traceback" not in err
    return line


@pytest.mark.slow
def test_a_full_disk_costs_the_record_in_hand_alone(run, tmp_path):
    place = tmp_path / "small"
    with mounted(place, "size=20k"):
        code, _, err = run(*MANY, output="small/runs")
        assert code == 2
        assert "No space left on device" in one_line(err)
        assert "stay valid" in err
        (folder,) = folders(place / "runs")
        lines = (folder / "predictions.jsonl").read_text().splitlines(keepends=True)
        written = [json.loads(line) for line in lines if line.endswith("\n")]
        assert 0 < len(written) < 18
        subprocess.run(["mount", "-o", "remount,size=10m", str(place)], check=True)
        code, out, _ = run(*MANY, output="small/runs")
        assert code == 0
        assert f"{len(written)} of 18 records are done" in out
        found = rows(folder)
        assert len({(row["dataset"], row["_id"]) for row in found}) == len(found) == 18
        assert found[: len(written)] == written


@pytest.mark.parametrize("size", ["4k", "8k", "12k", "16k"])
def test_a_disk_full_from_the_start_ends_in_one_line(run, tmp_path, size):
    place = tmp_path / "small"
    with mounted(place, f"size={size}"):
        code, _, err = run(*MANY, output="small/runs")
        assert code == 2
        assert "No space left on device" in one_line(err)
        written = [line for path in place.rglob("predictions.jsonl") for line in path.read_bytes().splitlines(True)]
        assert ("stay valid" in err) == any(line.endswith(b"\n") for line in written)
        assert not list(place.rglob(".*.json.*"))  # nothing half-written stays


def test_a_read_only_folder(run, tmp_path):
    place = tmp_path / "small"
    with mounted(place, "size=1m"):
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        code, _, err = run(*LAZY, output="small/runs")
        assert code == 2
        assert one_line(err).endswith("Read-only file system")
        code, _, err = run("-m", *LAZY, output="small/runs")
        assert code == 2
        assert "Read-only file system" in one_line(err)


@pytest.mark.slow
def test_the_output_folder_vanishes_while_the_run_is_at_work(run, tmp_path):
    output = tmp_path / "runs"

    def remove() -> None:
        while not list(output.rglob("predictions.jsonl")):
            time.sleep(0.01)
        os.rename(output, tmp_path / "gone")

    thread = threading.Thread(target=remove)
    thread.start()
    code, _, err = run(*MANY)
    thread.join()
    assert code == 2
    assert "No such file or directory" in one_line(err)
    (folder,) = folders(tmp_path / "gone")
    before = len(rows(folder))
    assert before
    shutil.move(tmp_path / "gone", output) if not output.exists() else shutil.copytree(
        tmp_path / "gone", output, dirs_exist_ok=True
    )
    code, out, _ = run(*MANY)
    assert code == 0
    assert f"{before} of 18 records are done" in out
    assert len(rows(folders(output)[0])) == 18


def test_reports_cannot_be_written_to_a_full_disk(run, lazybench, tmp_path):
    run(*LAZY)
    place = tmp_path / "small"
    with mounted(place, "size=16k"):
        code, _, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={place / 'report'}")
        assert code == 2
        assert "No space left on device" in one_line(err)
