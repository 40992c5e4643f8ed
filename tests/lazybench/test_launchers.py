"""Where a sweep's jobs run: other processes of this machine, one GPU each, or a cluster that can take them."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import folders, rows, small_run, stubborn_method

from lazybench.jobs import one_gpu

NEEDS = {"joblib": "joblib", "mine": "joblib", "local": "submitit", "ray": "ray"}
MINE = "# @package _global_\ndefaults: [{override /hydra/launcher: joblib}]\nhydra: {launcher: {n_jobs: 2}}\n"


@pytest.fixture
def sweep(tiny_model, tmp_path):
    """Run a sweep in a process of its own; returns its exit code and what LazyBench said last on stderr."""
    own = [*stubborn_method(tmp_path), "timing.per_dataset=0"]
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(MINE)
    settings = [*small_run(tiny_model, tmp_path / "runs", own), *own]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])

    def call(name: str, *words: str) -> tuple[int, str]:
        if find_spec(f"hydra_plugins.hydra_{NEEDS[name]}_launcher") is None:
            pytest.skip(f"needs PATH_TO_THIS_CHECKOUT[{NEEDS[name]}]")
        command = [sys.executable, "-m", "lazybench", "run", "-m", f"+cluster={name}", *settings, *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, re.findall("lazybench: .*", done.stderr)[-1:]

    return call


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_jobs_in_other_processes_that_fail_or_are_killed(sweep, lazybench, tmp_path, name):
    code, (last,) = sweep(name, "method.mood=good,dead")
    assert code == 2
    assert "lazybench status" in last
    code, (last,) = sweep(name, "method.mood=good,bad,fine")
    assert code == 2
    assert re.search("the mood is bad.*lazybench status", last)
    _, out, _ = lazybench("status", f"runs={tmp_path / 'runs'}")
    assert "the mood is bad" in out
    assert out.splitlines()[-1] == "1 failed, 1 stopped, 2 done"
    assert sorted(len(rows(folder)) for folder in folders(tmp_path / "runs") if list(folder.glob("pred*"))) == [2, 2]


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """A machine with three GPUs; locks of its own."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '0, GPU-a\\n1, GPU-b\\n2, GPU-c\\n'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(one_gpu.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(one_gpu, "_RETRY_S", 0.05)
    monkeypatch.setattr(one_gpu, "_acquired", [])


def hold(queue):
    """Take a GPU, say which, and keep it."""
    one_gpu.claim()
    one_gpu.claim()  # a process that runs several jobs keeps its GPU
    queue.put((os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]))
    signal.pause()


def test_no_two_jobs_have_one_gpu_and_a_killed_one_frees_its_own(gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 2")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    jobs = [context.Process(target=hold, args=(queue,)) for _ in range(4)]
    try:
        for job in jobs:
            job.start()
        holders = dict(queue.get(timeout=30) for _ in range(2))
        assert sorted(holders.values()) == ["GPU-a", "GPU-c"]
        for _ in range(2):
            process = next(iter(holders))
            os.kill(process, signal.SIGKILL)
            taker, device = queue.get(timeout=30)
            assert device == holders.pop(process)
            holders[taker] = device
    finally:
        for job in jobs:
            job.kill()
            job.join()
