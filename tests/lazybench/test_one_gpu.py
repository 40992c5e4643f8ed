"""Jobs on a machine with several GPUs, played by files: never two on one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from queue import Empty

import pytest

from lazybench.jobs import one_gpu


def hold(folder, queue, done):
    """Take a GPU, say which, and keep it until `done` is set."""
    device, _lock = one_gpu.take(["0", "1"], folder)
    queue.put((os.getpid(), device))
    done.wait()


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start jobs; returns them by process id with what ends each, and the queue of the GPUs they take."""
    monkeypatch.setattr(one_gpu, "_LOOK_AGAIN_S", 0.05)
    context = multiprocessing.get_context("fork")
    queue, started = context.Queue(), []

    def begin(count):
        for _ in range(count):
            done = context.Event()
            job = context.Process(target=hold, args=(tmp_path, queue, done))
            job.start()
            started.append((job, done))
        return {job.pid: (job, done) for job, done in started}, queue

    yield begin
    for job, _ in started:
        job.kill()
        job.join()


def test_no_two_jobs_have_one_gpu_and_all_get_their_turn(start):
    jobs, queue = start(6)
    holders = dict(queue.get(timeout=30) for _ in range(2))
    for _ in range(4):
        assert sorted(holders.values()) == ["0", "1"]
        with pytest.raises(Empty):
            queue.get(timeout=0.2)  # the others have to wait
        process = next(iter(holders))
        freed = holders.pop(process)
        jobs[process][1].set()
        process, device = queue.get(timeout=30)
        assert device == freed
        holders[process] = device


def test_a_killed_job_frees_its_gpu(start, tmp_path):
    jobs, queue = start(2)
    taken = dict(queue.get(timeout=30) for _ in jobs)
    first = next(iter(jobs))
    os.kill(first, signal.SIGKILL)
    device, lock = one_gpu.take(["0", "1"], tmp_path)
    lock.close()
    assert device == taken[first]


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
