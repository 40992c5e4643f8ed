"""What is looked at before jobs go to Slurm, with Slurm's commands played by scripts."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError
from lazybench.jobs import cluster

ACCOUNTS = "AccountingStorageType   = accounting_storage/slurmdbd"
NODES = "NodeName=n1 NodeAddr={0} State=IDLE\nNodeName=n2 NodeAddr={0} State=IDLE"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Make Slurm's commands, which say what is given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")

    def make(config: str = ACCOUNTS, nodes: str = NODES.format("far-away"), sacct: str = "exit 0") -> None:
        said = f'case "$2" in config) echo "{config}";; *) echo "{nodes}";; esac'
        for name, script in {"sbatch": "exit 0", "scontrol": said, "sacct": sacct}.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return make


def job(output: Path, model: str) -> SimpleNamespace:
    config = ModelConfig(name="m", path=model, limit=100)
    return SimpleNamespace(config=SimpleNamespace(output=str(output), model=config, data=SimpleNamespace(root=None)))


def checked(output: Path, model: Path | str, launcher: str = cluster.SLURM) -> list[str]:
    return cluster.check(launcher, [job(output, str(model))])


def test_nothing_is_looked_at_for_other_launchers(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checked(tmp_path, tmp_path, launcher="JoblibLauncher") == []


def test_slurm_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LazyBenchError, match="no sbatch here"):
        checked(tmp_path, tmp_path)


@pytest.mark.parametrize("config", ["AccountingStorageType   = (null)", "AccountingStorageType = x/none", ""])
def test_slurm_has_to_keep_accounts(tmp_path, slurm, config):
    slurm(config)
    with pytest.raises(LazyBenchError, match="keeps no accounts"):
        checked(tmp_path, tmp_path)


def test_accounts_have_to_be_readable(tmp_path, slurm):
    slurm(sacct="echo 'sacct: error: Connection refused' >&2; exit 1")
    with pytest.raises(LazyBenchError, match=r"sacct .* fails: sacct: error: Connection refused"):
        checked(tmp_path, tmp_path)


def test_the_output_folder_has_to_be_shared(tmp_path, slurm, monkeypatch):
    slurm()
    for kind, outcome in {"tmpfs": "cannot see", "overlay": "cannot see", "nfs4": None, "fuse.sshfs": None}.items():
        monkeypatch.setattr(cluster, "_file_system", lambda path, kind=kind: kind)
        if outcome is None:
            assert checked(tmp_path / "runs", tmp_path) == []
        else:
            with pytest.raises(LazyBenchError, match=outcome):
                checked(tmp_path / "runs", tmp_path)
    monkeypatch.setattr(cluster, "_file_system", lambda path: "ext4")
    model, output = checked(tmp_path / "runs", tmp_path)
    assert "model.path=" in model
    assert "output=" in output
    assert "make sure that every node sees" in output


def test_one_machine_shares_all_with_itself(tmp_path, slurm, monkeypatch):
    slurm(nodes=NODES.format(socket.gethostname()))
    monkeypatch.setattr(cluster, "_file_system", lambda path: "tmpfs")
    assert checked(tmp_path / "runs", tmp_path) == []


def test_the_file_system_of_a_folder_to_come_is_that_of_its_parent(tmp_path):
    assert cluster._file_system(Path("/proc/self")) == "proc"
    assert cluster._file_system(tmp_path / "a" / "b") == cluster._file_system(tmp_path) != "unknown"


def test_weights_that_every_job_would_fetch_are_told(tmp_path, slurm, monkeypatch):
    slurm(nodes=NODES.format("localhost"))
    (warning,) = checked(tmp_path, "someone/model")
    assert "someone/model" in warning
    assert "fetch them once" in warning
