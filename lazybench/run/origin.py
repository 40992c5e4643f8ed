"""How a run was asked for: the words of its command, to be stored and printed."""

import re
import shlex
import sys

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig


def command() -> list[str]:
    """The words behind `python -m lazybench` that ask for the job under way alone.

    They are Hydra's and not `sys.argv`, which in a launcher's process, or of a sweep, is not this job's.
    """
    about = HydraConfig.get()
    # An experiment that sweeps is refused without -m; the job's own words leave one job of it.
    flags = ["-m"] if about.mode == RunMode.MULTIRUN else []
    folders = [f"--config-dir={place}" for place in own_folders(about)]
    return ["run", *flags, *folders, *about.overrides.task]


def typed(command: str) -> str:
    """The words of the command under way, without the folders of this machine."""
    words = [re.sub(r"^([\w.-]+)=/.*/", r"\1=", word) for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "lazybench", command, *words])


def own_folders(about: DictConfig) -> list[str]:
    """The user's folders of configs, in a job's part `hydra`."""
    return [of.path for of in about.runtime.config_sources if of.provider.endswith("command-line")]
