"""The command that a run was started with, to be stored and printed."""

import re
import shlex
import sys

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig


def job_command() -> list[str]:
    """Return the words after `python -m lazybench` that start the current job alone.

    They come from Hydra, as `sys.argv` holds other words in a sweep or in a launcher's process.
    """
    config = HydraConfig.get()
    # An experiment that sweeps needs -m, even if the job's own words leave one job of it.
    flags = ["-m"] if config.mode == RunMode.MULTIRUN else []
    folders = [f"--config-dir={folder}" for folder in own_folders(config)]
    return ["run", *flags, *folders, *config.overrides.task]


def typed(command: str) -> str:
    """Return the words of the current command, without the folders of this machine."""
    words = [re.sub(r"^([\w.-]+)=/.*/", r"\1=", word) for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "lazybench", command, *words])


def own_folders(config: DictConfig) -> list[str]:
    """Return the user's folders of configs, from the part `hydra` of a job's config."""
    return [source.path for source in config.runtime.config_sources if source.provider.endswith("command-line")]
