"""Jobs on a machine with several GPUs, played by files: never two on one."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time

import pytest

from lazybench.jobs import one_gpu


def hold(folder, queue, seconds):
    device, _lock = one_gpu.take(["0", "1"], folder)
    queue.put((device, os.getpid(), time.monotonic()))
    time.sleep(seconds)
    queue.put((device, os.getpid(), time.monotonic()))


def test_no_two_jobs_have_one_gpu_and_all_get_their_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(one_gpu, "_LOOK_AGAIN_S", 0.05)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    jobs = [context.Process(target=hold, args=(tmp_path, queue, 0.2)) for _ in range(6)]
    for job in jobs:
        job.start()
    notes = [queue.get(timeout=30) for _ in range(12)]
    for job in jobs:
        job.join()
    spans = {}
    for device, process, moment in notes:
        spans.setdefault((device, process), []).append(moment)
    assert len(spans) == 6
    assert {device for device, _ in spans} == {"0", "1"}
    for device in "01":
        ordered = sorted(sorted(span) for (on, _), span in spans.items() if on == device)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ordered))


def test_a_killed_job_frees_its_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(one_gpu, "_LOOK_AGAIN_S", 0.05)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    jobs = [context.Process(target=hold, args=(tmp_path, queue, 60)) for _ in range(2)]
    for job in jobs:
        job.start()
    taken = {process: device for device, process, _ in (queue.get(timeout=30) for _ in jobs)}
    os.kill(jobs[0].pid, signal.SIGKILL)
    device, lock = one_gpu.take(["0", "1"], tmp_path)
    lock.close()
    assert device == taken[jobs[0].pid]
    jobs[1].kill()
    for job in jobs:
        job.join()


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, ["GPU-a", "GPU-b", "GPU-c"]),
        ("1,2", ["GPU-b", "GPU-c"]),
        ("0,1,2,3,4", ["GPU-a", "GPU-b", "GPU-c"]),
        ("GPU-b", ["GPU-b"]),
        ("", []),
    ],
)
def test_the_gpus_that_a_job_may_use(tmp_path, monkeypatch, allowed, expected):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '0, GPU-a\\n1, GPU-b\\n2, GPU-c\\n'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if allowed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    assert one_gpu.visible() == expected
    monkeypatch.setattr(one_gpu.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(one_gpu, "_held", [])
    for _ in range(2):  # a process that runs several jobs keeps its GPU
        one_gpu.claim()
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == (expected[0] if expected else allowed)
    assert len(one_gpu._held) == bool(expected)
    for lock in one_gpu._held:
        lock.close()


def test_a_machine_without_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    one_gpu.claim()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert not one_gpu._held
