"""Sweeps on a real Slurm, whose jobs are cancelled, whose nodes fail and whose driver is killed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support import folders, rows, small_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("slurm_cluster")
RECORDS = 200  # of each run
HANGS = 600  # seconds: however slow the machine, something is wrong
PROGRAMS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "sbatch", "sacct")


def control(folder, *words):
    return subprocess.run([SCRIPT, "--dir", folder, *words], capture_output=True, text=True, timeout=HANGS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The environment of commands that speak to a running cluster."""
    pytest.importorskip("submitit", reason="needs pip install 'PATH_TO_THIS_CHECKOUT[submitit]'")
    folder = tmp_path_factory.mktemp("slurm")
    search = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    if any(shutil.which(program, path=search) is None for program in PROGRAMS):
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip("Slurm is not installed, and cannot be: that needs root and apt-get")
        installed = control(folder, "install")
        if installed.returncode != 0:
            pytest.skip(f"Slurm is not installed, and cannot be: {installed.stderr.strip()}")
    started = control(folder, "start")
    assert started.returncode == 0, started.stderr
    yield {
        **os.environ,
        "SLURM_CONF": str(folder / "slurm.conf"),
        "SLURM_CLUSTER_DIR": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    assert control(folder, "stop").returncode == 0
    left = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True).stdout
    assert not [pid for pid in left.split() if (Path("/proc") / pid / "cmdline").read_bytes()]  # not just unburied


@pytest.fixture
def sweep(cluster, tiny_model, tmp_path):
    """Start a sweep of two jobs."""
    started = []

    def start():
        own = ["method=lazyllm", "method.schedule=[1:0.5],[1:0.6]", f"data.limit={RECORDS}"]
        # Each record is answered by itself, so that a run takes long enough to be cancelled.
        own += ["batch=1", "timing.per_dataset=0"]
        own += ["hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1"]
        settings = [*small_run(tiny_model, tmp_path / "runs", own), *own]
        command = [sys.executable, "-m", "lazybench", "run", "-m", "+cluster=slurm_cpu", *settings]
        driver = subprocess.Popen(
            command, env=cluster, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(driver)
        return driver

    yield start
    subprocess.run(["scancel", "--user", str(os.getuid())], env=cluster, check=True)
    for driver in started:
        driver.kill()
        driver.communicate()
    wait_for(lambda: not jobs(cluster))


def jobs(cluster, *words):
    """The ids and nodes of the jobs there are; `words` go to squeue."""
    listed = slurm(cluster, "squeue", "--noheader", "--array", "--format=%i %N", *words)
    return [line.split() for line in listed.splitlines()]


def slurm(cluster, *command):
    """What one of Slurm's commands prints."""
    return subprocess.run(command, env=cluster, capture_output=True, text=True, check=True, timeout=HANGS).stdout


def wait_for(condition):
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, "this takes too long"
        time.sleep(0.3)


def all_at_work(tmp_path):
    """Whether both runs have at least two records on disk."""
    files = list((tmp_path / "runs").glob("*/*/*/*/predictions.jsonl"))
    return len(files) == 2 and all(len(path.read_bytes().splitlines()) >= 2 for path in files)


def check(tmp_path):
    """Every record of both runs is there once, and both are summed up."""
    assert len(folders(tmp_path / "runs")) == 2
    for folder in folders(tmp_path / "runs"):
        times = Counter((row["dataset"], row["_id"]) for row in rows(folder))
        assert len(times) == RECORDS
        assert set(times.values()) == {1}
        assert (folder / "scores.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}, "something was written beside the output folder"


def test_a_cancelled_job_and_a_killed_driver(cluster, sweep, tmp_path):
    driver = sweep()
    wait_for(lambda: all_at_work(tmp_path))
    cancelled = jobs(cluster, "--states=running")[0][0]
    slurm(cluster, "scancel", cancelled)
    _, err = driver.communicate(timeout=HANGS)
    assert driver.returncode == 2
    assert "Traceback" not in err, err
    assert re.search("^lazybench: .*CANCELLED", err, re.MULTILINE)
    wait_for(lambda: not jobs(cluster))
    driver = sweep()
    wait_for(lambda: jobs(cluster, "--states=running"))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    again = sweep()  # while a job of the one before still runs
    _, err = again.communicate(timeout=HANGS)
    assert again.returncode == 0, err
    wait_for(lambda: not jobs(cluster))
    check(tmp_path)


def test_a_node_that_fails(cluster, sweep, tmp_path):
    driver = sweep()
    wait_for(lambda: all_at_work(tmp_path))
    _, node = jobs(cluster, "--states=running")[0]
    hit = [number for number, where in jobs(cluster, "--states=running") if where == node]
    assert control(cluster["SLURM_CLUSTER_DIR"], "kill-node", node).returncode == 0
    try:
        _, err = driver.communicate(timeout=HANGS)
        assert "Traceback" not in err
        # Slurm itself puts the job back into the queue, and it continues where it stopped.
        wait_for(lambda: not jobs(cluster))
        listed = slurm(
            cluster, "sacct", "-X", "--duplicates", "--noheader", "--parsable2", "--format=State", "-j", hit[0]
        )
        assert listed.split() == ["NODE_FAIL", "COMPLETED"]
        check(tmp_path)
    finally:
        assert control(cluster["SLURM_CLUSTER_DIR"], "revive-node", node).returncode == 0
