"""What must hold on a cluster before a sweep starts there."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lazybench.config import RunConfig
from lazybench.errors import LazyBenchError
from lazybench.model.loading import cached
from lazybench.run.job import Job

SLURM = "SlurmLauncher"
# File systems that no other machine sees.
_OWN = ("tmpfs", "ramfs", "overlay", "squashfs")
_SHARED = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "panfs", "pvfs2", "wekafs", "9p")
_PATIENCE_S = 60


def check(launcher: str, jobs: Sequence[Job]) -> list[str]:
    """Look for what would make a cluster's jobs fail or hang.

    Args:
        launcher: the class name of Hydra's launcher.
        jobs: the sweep's jobs.

    Returns:
        warnings.

    Raises:
        LazyBenchError: Slurm is not there, keeps no accounts, or its nodes cannot see the output folder.
    """
    if launcher != SLURM:
        return []
    _check_accounting()
    warnings = [] if _is_one_machine() else _check_shared({place for job in jobs for place in _places(job.config)})
    far = sorted({job.config.model.path for job in jobs if not cached(job.config.model)})
    return warnings + [
        f"the weights of {path} are not on this machine: every job would fetch them; fetch them once" for path in far
    ]


def _check_accounting() -> None:
    if shutil.which("sbatch") is None:
        raise LazyBenchError(
            "there is no sbatch here: start the sweep where Slurm's commands are, or use +cluster=local"
        )
    config = _said("scontrol", "show", "config")
    kept = [line.partition("=")[2].strip() for line in config.splitlines() if line.startswith("AccountingStorageType")]
    if not any(kind.endswith("slurmdbd") for kind in kept):
        raise LazyBenchError(
            "Slurm keeps no accounts here, so a sweep would wait for ever for a cancelled job: it needs "
            f"AccountingStorageType=accounting_storage/slurmdbd, not {', '.join(kept) or 'nothing'}"
        )
    _said("sacct", "--noheader", "--starttime", "now")


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LazyBenchError(f"{command[0]} does not answer: {error}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LazyBenchError(f"{' '.join(command)} fails: {reason}")
    return done.stdout


def _is_one_machine() -> bool:
    """Whether all nodes are this machine, which then sees all that they see."""
    here = {socket.gethostname(), socket.gethostname().partition(".")[0], "localhost", "127.0.0.1"}
    addresses = {word.partition("=")[2] for word in _said("scontrol", "show", "node").split() if "NodeAddr=" in word}
    return addresses <= here


def _places(config: RunConfig) -> Iterator[tuple[str, str]]:
    """The settings that name folders which all nodes have to see."""
    yield "output", config.output
    if config.data.root is not None:
        yield "data.root", config.data.root
    if Path(config.model.path).expanduser().exists():
        yield "model.path", config.model.path


def _check_shared(places: Iterable[tuple[str, str]]) -> list[str]:
    warnings = []
    for setting, place in sorted(places):
        kind = _file_system(Path(place).expanduser().absolute())
        if kind in _OWN:
            raise LazyBenchError(
                f"{setting}={place} is on {kind}, which the nodes cannot see: set it to a folder that all of them share"
            )
        if kind not in _SHARED and not kind.startswith("fuse"):
            warnings.append(f"{setting}={place} is on {kind}: make sure that every node sees the same there")
    return warnings


def _file_system(path: Path) -> str:
    """The type of the file system that `path` is on or would be made on."""
    place = next(place for place in (path, *path.parents) if place.exists()).resolve()
    mounts = map(str.split, Path("/proc/self/mounts").read_text().splitlines())
    kinds = {Path(at.replace("\\040", " ")): kind for _, at, kind, *_ in mounts}  # the last one at a place hides others
    return next((kinds[at] for at in (place, *place.parents) if at in kinds), "unknown")
