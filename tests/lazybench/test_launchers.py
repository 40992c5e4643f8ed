"""Sweeps whose jobs run in other processes of this machine, and the configs for clusters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from support import folders, rows, stubborn_method

from lazybench.config import CONF

CLUSTERS = sorted(path.stem for path in (CONF / "cluster").glob("*.yaml"))
NEEDS = {"joblib": "joblib", "local": "submitit", "slurm_a100": "submitit", "slurm_cpu": "submitit", "ray": "ray"}


def installed(name: str) -> bool:
    return find_spec(f"hydra_plugins.hydra_{NEEDS[name]}_launcher") is not None


@pytest.mark.parametrize("name", CLUSTERS)
def test_each_cluster_is_ready_or_says_what_it_needs(lazybench, name):
    code, out, err = lazybench("run", f"+cluster={name}", "task=code", "--cfg", "hydra")
    if installed(name):
        assert code == 0, err
        launcher = yaml.safe_load(out)["hydra"]["launcher"]
        assert NEEDS[name] in launcher["_target_"]
        if name == "slurm_a100":
            assert launcher["gres"] == "gpu:a100:1"
            assert launcher["mem_gb"] >= 28
            assert launcher["additional_parameters"]["requeue"]
    else:
        assert code == 2
        assert f"pip install 'lazybench[{NEEDS[name]}]'" in err
        assert len(err.strip().splitlines()) == 1


def test_experiments_come_to_clusters_in_any_order(lazybench):
    for words in (["+cluster=slurm_cpu", "+experiment=smoke"], ["+experiment=smoke", "+cluster=slurm_cpu"]):
        if not installed("slurm_cpu"):
            pytest.skip("needs lazybench[submitit]")
        code, out, err = lazybench("run", *words, "--cfg", "hydra")
        assert code == 0, err
        hydra = yaml.safe_load(out)["hydra"]
        assert "SlurmLauncher" in hydra["launcher"]["_target_"]
        assert hydra["sweeper"]["params"]["method"].startswith("baseline,")


def said(err: str) -> list[str]:
    """What LazyBench says among the progress bars and warnings of libraries."""
    return re.findall("lazybench: .*", err)


@pytest.fixture
def sweep(tiny_model, tmp_path):
    """Run a sweep in a process of its own; returns (exit code, stdout, stderr)."""
    settings = [
        *(*stubborn_method(tmp_path), f"model.path={tiny_model}", "model.name=tiny"),
        *("model.chat=null", "model.limit=900", "data.tokens=512", "data.limit=2", "timing.warmup=0", "task=2wikimqa"),
        f"output={tmp_path / 'runs'}",
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }

    def call(name: str, *words: str) -> tuple[int, str, str]:
        if not installed(name):
            pytest.skip(f"needs lazybench[{NEEDS[name]}]")
        command = [sys.executable, "-m", "lazybench", "run", "-m", f"+cluster={name}", *settings, *words]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.slow
@pytest.mark.parametrize("name", ["joblib", "local", "ray"])
def test_jobs_in_other_processes(sweep, lazybench, tmp_path, name):
    code, _, err = sweep(name, "method.mood=good,bad,fine")
    assert code == 2
    last = said(err)[-1]
    assert "the mood is bad" in last
    assert "lazybench status" in last
    assert all(len(rows(folder)) == 2 for folder in folders(tmp_path / "runs"))
    _, out, _ = lazybench("status", f"runs={tmp_path / 'runs'}")
    assert "the mood is bad" in out
    assert out.splitlines()[-1] == "1 failed, 2 done"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["joblib", "local", "ray"])
def test_a_job_that_is_killed(sweep, lazybench, tmp_path, name):
    code, _, err = sweep(name, "method.mood=good,dead")
    assert code == 2
    assert "lazybench status" in said(err)[-1]
    code, _, err = sweep(name, "method.mood=good,fine")
    assert code == 0, err
    assert len(folders(tmp_path / "runs")) == 2
