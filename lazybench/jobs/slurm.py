"""Check that this machine can submit jobs to Slurm."""

import shutil
from typing import Any


def is_slurm(launcher: Any) -> bool:
    """Return whether Hydra's settings of a launcher are those of Slurm's."""
    return launcher._target_.endswith(".SlurmLauncher")


def missing_programs() -> str:
    """Return which of Slurm's programs are not here, such as `srun and no sbatch`; empty where both are."""
    return " and no ".join(name for name in ("srun", "sbatch") if shutil.which(name) is None)
