"""What a sweep asks of a cluster, and what must hold there before it starts."""

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from lazybench.errors import LazyBenchError
from lazybench.model.loading import cached
from lazybench.run.job import Job

SLURM = "SlurmLauncher"
_ASKED = [
    "partition",
    "account",
    "qos",
    "constraint",
    "gres",
    "gpus_per_node",
    "cpus_per_task",
    "mem_gb",
    "timeout_min",
]
_PATIENCE_S = 60


def is_slurm(launcher: Any) -> bool:
    """Whether Hydra's settings of a launcher are those of Slurm's."""
    return launcher._target_.rpartition(".")[2] == SLURM


def submission(launcher: Any, jobs: int) -> str:
    """What a sweep of so many jobs would ask Slurm for."""
    asked = " ".join(f"{key}={launcher[key]}" for key in _ASKED if launcher.get(key) is not None)
    most = launcher.get("array_parallelism") or jobs
    return f"run -m submits an array of {jobs} to Slurm, {min(most, jobs)} at a time, each with {asked}" + (
        "" if shutil.which("sbatch") else "; there is no sbatch here to submit it with"
    )


def check(launcher: str, jobs: Sequence[Job]) -> list[str]:
    """Warn of what every job of a launcher, a class's name, would fetch.

    Raises:
        LazyBenchError: Slurm is not there, or keeps no accounts.
    """
    if launcher != SLURM:
        return []
    if shutil.which("sbatch") is None:
        raise LazyBenchError(
            "there is no sbatch here: start the sweep where Slurm's commands are, or use +cluster=local"
        )
    config = _said("scontrol", "show", "config")
    kept = [line for line in config.splitlines() if line.startswith("AccountingStorageType")]
    if not any("slurmdbd" in line for line in kept):
        raise LazyBenchError(
            "Slurm keeps no accounts here, so a sweep would wait for ever for a cancelled job: it needs "
            f"AccountingStorageType=accounting_storage/slurmdbd, not {' '.join(kept) or 'nothing'}"
        )
    far = sorted({job.config.model.path for job in jobs if not cached(job.config.model)})
    return [
        f"the weights of {path} are not on this machine: every job would fetch them; fetch them once" for path in far
    ]


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise LazyBenchError(f"{' '.join(command)} fails: {getattr(error, 'stderr', None) or error}") from None
    return done.stdout
