"""The commands that Hydra configures: it composes the settings, this checks them and hands them on."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lazybench import config as schema
from lazybench.cli import users_fault
from lazybench.cli.lost_jobs import mark_said, was_said
from lazybench.cli.messages import check_keys, explain
from lazybench.config import CONF
from lazybench.errors import LazyBenchError, one_line
from lazybench.jobs import one_gpu
from lazybench.store.locks import Busy
from lazyllm.errors import LazyLLMError

# What bad input raises; anything else is a fault of ours and shows its traceback.
KNOWN = (LazyBenchError, LazyLLMError, HydraException, OmegaConfBaseException, OSError)

IN_TURN = "BasicLauncher"
# Launchers of jobs that share this machine, with nothing that shares out its GPUs.
_NEIGHBOURS = ("LocalLauncher", "JoblibLauncher")

schema.register()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> str:
    """Run one job; a sweep calls this once a job.

    Returns:
        the run's folder.
    """
    return _guarded(config, schema.RunConfig, "lazybench.run.runner", "run")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="speed")
def speed(config: DictConfig) -> str:
    """Measure speed."""
    return _guarded(config, schema.SpeedConfig, "lazybench.cli.speed", "main")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="calibrate")
def calibrate(config: DictConfig) -> str:
    """Find a schedule."""
    return _guarded(config, schema.CalibrateConfig, "lazybench.cli.calibrate", "main")


def _guarded(config: DictConfig, kind: type, module: str, function: str) -> str:
    """Check the settings and carry them out; what is wrong with them is said in one line."""
    try:
        return _job(config, kind, module, function)
    except BrokenPipeError:
        raise SystemExit(1) from None  # who read the output has gone: there is nobody to tell
    except Exception as error:
        if isinstance(error, Busy) and HydraConfig.get().mode == RunMode.MULTIRUN:
            print(f"{error}: left to it")  # as when a sweep is started anew while its jobs still run
            return ""
        if (fault := users_fault.find(error, config.get("method") or {})) is not None:
            print(fault.frames, end="", file=sys.stderr)
            said = LazyBenchError(fault.said)
            _end(said)
            raise said from None
        if isinstance(error, KNOWN):
            _end(error)
        elif not HydraConfig.get().launcher._target_.endswith(IN_TURN):
            traceback.print_exc()  # Hydra hands the error on to the driver without it
        raise


class QuietFailures(Callback):
    """Keeps Hydra from saying once more, with every setting, that a job failed whose line has been said."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if was_said(job_return._return_value):
            job_return.__class__ = _Said


class _Said(JobReturn):
    @property
    def return_value(self) -> NoReturn:
        raise self._return_value


def _job(config: DictConfig, kind: type, module: str, function: str) -> str:
    settings = read_settings(config, kind, HydraConfig.get())
    if HydraConfig.get().mode == RunMode.MULTIRUN and HydraConfig.get().launcher._target_.endswith(_NEIGHBOURS):
        one_gpu.claim()
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return str(getattr(import_module(module), function)(settings))


def read_settings(config: DictConfig, kind: type, about: DictConfig) -> Any:
    """A job's settings as objects of the schema, checked.

    Args:
        config: what Hydra composed.
        kind: the schema it must be of.
        about: what Hydra says of itself and of the job.

    Raises:
        LazyBenchError: a setting is missing or wrong.
    """
    check_keys(config, kind)
    missing = OmegaConf.missing_keys(config)
    if missing:
        raise LazyBenchError(f"nothing is set for {', '.join(sorted(missing))}: give it as {sorted(missing)[0]}=VALUE")
    _name_model(config, about.overrides.task)
    settings = OmegaConf.to_object(config)
    # A method of the user's own is a file next to its YAML.
    for source in about.runtime.config_sources:
        if source.provider == "command-line" and source.path not in sys.path:
            sys.path.append(source.path)
    return settings


def _name_model(config: DictConfig, overrides: Iterable[str]) -> None:
    """Name a model that was given by its path alone, so that it is not filed under another's name."""
    given = {override.partition("=")[0] for override in overrides}
    if "model.path" in given and "model.name" not in given:
        stem = Path(config.model.path).name.removesuffix(".gguf")
        config.model.name = re.sub(r"[^\w.-]+", "-", stem, flags=re.ASCII).lstrip("-_.") or "model"


def _end(error: Exception) -> None:
    """Say why a job ends. A single run ends the command here; a sweep goes on with its other jobs."""
    print(f"lazybench: {one_line(explain(error))}", file=sys.stderr)
    mark_said(error)
    if HydraConfig.get().mode == RunMode.RUN:
        sys.exit(2)
