"""The commands that Hydra configures: it composes the settings, this checks them and hands them on."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from yaml import MarkedYAMLError
from yaml.reader import ReaderError

from lazybench import config as schema
from lazybench.cli import failures
from lazybench.cli.messages import explain
from lazybench.cli.precheck import check
from lazybench.config import CONF
from lazybench.data import choose, load_facts
from lazybench.errors import LazyBenchError
from lazybench.jobs import one_gpu
from lazybench.store.locks import Busy

IN_TURN = "BasicLauncher"
# Launchers of jobs that share this machine, with nothing that shares out its GPUs.
_NEIGHBOURS = ("LocalLauncher", "JoblibLauncher")
# What Hydra only warns of: a folder that is not there, two modes at once.
_BAD_INPUT = ("provider=.* is not available", r"\s*Running Hydra app with --multirun")

schema.register()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def run(config: DictConfig) -> str:
    """Run one job; a sweep calls this once a job. Returns the run's folder."""
    return _guarded(config, schema.RunConfig, "lazybench.run.runner", "run")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="speed")
def speed(config: DictConfig) -> str:
    """Measure speed."""
    return _guarded(config, schema.SpeedConfig, "lazybench.cli.speed", "main")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="match")
def match(config: DictConfig) -> str:
    """Find strengths for speedups."""
    return _guarded(config, schema.MatchConfig, "lazybench.cli.match", "main")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="calibrate")
def calibrate(config: DictConfig) -> str:
    """Find a schedule."""
    return _guarded(config, schema.CalibrateConfig, "lazybench.cli.calibrate", "main")


# `plan` and `map` end where a sweep would start its jobs.
_JOBS = {"run": run, "plan": run, "map": run, "speed": speed, "match": match, "calibrate": calibrate}


def start(command: str, words: Sequence[str], program: str | None = None) -> int:
    """Start a command with flags and settings in any order; `program` is what Hydra is to call it.

    Raises:
        LazyBenchError: the words are not what the command takes, or jobs failed.
    """
    if command == "plan":
        if any(word.split("=")[0] in ("--cfg", "-c") for word in words):
            raise LazyBenchError("plan shows what would be run, and --cfg the settings: lazybench run --cfg job")
        words = ["--multirun", *words, "hydra.callbacks.sweep.plan=true"]
    words = [re.sub(r"^(lengths|speedups)=([\d.]+)$", r"\1=[\2]", word) for word in words]
    if command == "calibrate":  # these hold signs that mean something to Hydra
        words = [re.sub(r"^(budget|reference)=([^'\"].*)$", r'\1="\2"', word) for word in words]
    program = program or f"lazybench {command}"
    # Hydra takes flags first and settings after them; people write them in any order.
    words = sorted(words, key=lambda word: "=" in word and not word.startswith("-"))
    given = check(program, words)
    if command == "map":
        if given.config_name:
            raise LazyBenchError("map reads its own settings, map.yaml: leave out --config-name")
        shows = given.cfg or given.info or given.help or given.hydra_help
        words = ["--config-name=map", *([] if shows else ["--multirun"]), *words]
    # With this set Hydra raises instead of printing a traceback of its own and leaving with exit code 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = [program, *words]
    try:
        with warnings.catch_warnings():
            for said in _BAD_INPUT:
                warnings.filterwarnings("error", message=said)
            _JOBS[command]()
    except Exception as error:
        said = failures.of_sweep(error)
        ours = said is None and not isinstance(error, failures.KNOWN) and not _from_hydra(error)
        if ours or isinstance(error, BrokenPipeError):
            raise
        raise LazyBenchError(said or explain(error)) from error
    return 0


def _from_hydra(error: BaseException) -> bool:
    """Whether Hydra itself, or what it reads settings with, stumbled: it meets some bad words with any exception."""
    if isinstance(error, MarkedYAMLError | ReaderError):
        return True
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("hydra", "omegaconf", "antlr4")


def _guarded(config: DictConfig, kind: type, module: str, function: str) -> str:
    """Check the settings and carry them out; what is wrong with them is said in one line."""
    about = HydraConfig.get()
    try:
        settings = read_settings(config, kind, about)
        _check_swept(about)
        if about.mode == RunMode.MULTIRUN and about.launcher._target_.endswith(_NEIGHBOURS):
            one_gpu.claim()
        print(_subject(settings), flush=True)  # the imports below take seconds
        quiet()
        return str(getattr(import_module(module), function)(settings))
    except BrokenPipeError:
        raise SystemExit(1) from None  # who read the output has gone: there is nobody to tell
    except Exception as error:
        if isinstance(error, Busy) and about.mode == RunMode.MULTIRUN:
            # As when a sweep is started anew while its jobs still run.
            print(f"{error}: skipped, that process goes on with it")
            return ""
        known = failures.known(error, config.get("method") or {})
        if known is None:
            if not about.launcher._target_.endswith(IN_TURN):
                traceback.print_exc()  # Hydra hands the error on to the driver without it
            raise
        failures.tell(known)
        if about.mode == RunMode.RUN:
            sys.exit(2)
        raise known from None  # a sweep goes on with its other jobs


def _check_swept(about: DictConfig) -> None:
    """Raise `LazyBenchError` where a single job would take the defaults for what its experiment sweeps over."""
    given = {word.lstrip("+").partition("=")[0] for word in about.overrides.task}
    swept = [key for key in map(str, about.sweeper.get("params") or {}) if key.lstrip("+") not in given]
    if about.mode == RunMode.RUN and swept:
        raise LazyBenchError(f"the experiment sweeps over {' and '.join(swept)}: add -m, or set a value of each")


def _subject(settings: Any) -> str:
    """What a command is about, as far as its settings tell."""
    method, data, task, shard = (getattr(settings, key, None) for key in ("method", "data", "task", "shard"))
    named = {"model": settings.model.name, "data": data and data.name, "method": method and method.get("name")}
    named |= {"task": task, "shard": shard}
    return ", ".join(f"{key} {name}" for key, name in named.items() if name is not None)


def quiet() -> None:
    """Keep libraries from printing warnings, progress bars and marks of their own among what a command says."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler: whatever does not stop it
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def read_settings(config: DictConfig, kind: type, about: DictConfig) -> Any:
    """What Hydra composed, as objects of the schema `kind`, checked; `about` is what Hydra says of the job.

    Raises:
        LazyBenchError: a setting is missing or wrong.
        OmegaConfBaseException: a setting is not in the schema.
    """
    given = OmegaConf.missing_keys(config)
    # With a plus in front Hydra takes any setting.
    config = OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.to_container(config))
    missing = sorted(given | OmegaConf.missing_keys(config))
    if missing:
        raise LazyBenchError(f"nothing is set for {', '.join(missing)}: give it as {missing[0]}=VALUE")
    _name_model(config, about.overrides.task)
    settings = OmegaConf.to_object(config)
    _check_places(settings)
    # A method of the user's own is a file next to its YAML.
    for source in about.runtime.config_sources:
        if source.provider == "command-line" and source.path not in sys.path:
            sys.path.append(source.path)
    return settings


def _check_places(settings: Any) -> None:
    """Refuse before the imports, which take seconds, a task and places that are not there."""
    if (text := getattr(settings, "text", None)) is not None and (not os.path.exists(text) or os.path.isdir(text)):
        raise LazyBenchError(f"text={text} cannot be read: there is no such file")
    if getattr(settings, "task", None) is not None:
        choose(settings.task, settings.data, load_facts(settings.data.datasets))


def _name_model(config: DictConfig, overrides: Iterable[str]) -> None:
    """Name a model that was given by its path alone, so that it is not filed under another's name."""
    given = {override.partition("=")[0] for override in overrides}
    # The path of a shape with random weights is its tokenizer's alone.
    if "model.path" in given and "model.name" not in given and not config.model.get("shape"):
        stem = Path(config.model.path).name.removesuffix(".gguf")
        config.model.name = re.sub(r"[^\w.-]+", "-", stem, flags=re.ASCII).lstrip("-_.") or "model"
