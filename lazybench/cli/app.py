"""The commands that Hydra configures: one job, several in turn, or several through one of Hydra's launchers."""

import os
import re
import shlex
import sys
import traceback
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lazybench.cli import settings
from lazybench.cli.arguments import add_config_dir, read
from lazybench.config import CONF, SCHEMAS
from lazybench.errors import LazyBenchError, one_line
from lazybench.jobs import one_gpu, slurm
from lazybench.run.origin import own_folders
from lazybench.store.locks import Busy
from lazyllm import LazyLLMError

if TYPE_CHECKING:
    from lazybench.run.job import Job as RunJob
    from lazybench.run.sources import Sources

# What bad input raises; anything else is a fault of ours, or of a method of the user's, and shows its traceback.
_KNOWN = (LazyBenchError, LazyLLMError, OSError)
# Launchers of jobs that share this machine, with nothing that shares out its GPUs.
_NEIGHBOURS = ("LocalLauncher", "JoblibLauncher")


class _Job(NamedTuple):
    """A job's settings, and all that Hydra says of it."""

    settings: Any
    config: DictConfig


def start(command: str, words: Sequence[str]) -> int:
    """Start a command with flags and settings in any order; its words, or jobs that failed, raise `LazyBenchError`."""
    parser = ArgumentParser(f"lazybench {command}", add_help=False)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", choices=("job", "hydra"))
    add_config_dir(parser, "also choose from the configs in FOLDER")
    given, name = read(parser, words), "run" if command == "plan" else command
    typed = [re.sub(r"^(lengths|speedups)=([\d.]+)$", r"\1=[\2]", word) for word in given.settings]
    if command == "calibrate":  # these hold signs that mean something to Hydra
        typed = [re.sub(r"^(budget|reference)=([^'\"].*)$", r'\1="\2"', word) for word in typed]
    if given.config_dir:
        if any(word.startswith("hydra.searchpath=") for word in typed):
            raise LazyBenchError("hydra.searchpath= beside --config-dir is not read: give each folder as --config-dir")
        typed = [settings.search_path(given.config_dir), *typed]
    several = given.multirun or command in ("plan", "map")
    configs, sweep = settings.compose_jobs(name, typed, several or given.cfg is not None)
    if given.cfg is not None:
        keys = [key for key in configs[0] if (key == "hydra") == (given.cfg == "hydra")]
        print(OmegaConf.to_yaml(OmegaConf.masked_copy(configs[0], keys)), end="")
        return 0
    in_turn = settings.in_turn(configs[0])
    if not (in_turn or several):
        raise LazyBenchError("+cluster= is where the jobs of a sweep run: add -m, also for a single one")
    submits = command not in ("plan", "map") and slurm.is_slurm(configs[0].hydra.launcher)
    if submits and (missing := slurm.missing_programs()):
        raise LazyBenchError(
            f"there is no {missing} on this machine to submit jobs to Slurm with: give the command on "
            "a login node of the cluster, or run the jobs here, in turn without +cluster= or with +cluster=local"
        )
    jobs = [_Job(settings.read(config, config.hydra), config) for config in configs]
    for warning in dict.fromkeys(warning for job in jobs for warning in settings.literal_escapes(job.settings)):
        print(f"warning: {warning}", file=sys.stderr)
    for key in ("output", "profile") if command == "speed" else ():
        files = Counter(file for job in jobs if (file := getattr(job.settings, key)))
        if shared := next((file for file, count in files.items() if count > 1), None):
            own = Path(shared).with_stem(f"{Path(shared).stem}_${{model.name}}_${{method.name}}")
            raise LazyBenchError(
                f"{key}={shared} is one file for {files[shared]} jobs: give each its own: {key}='{own}'"
            )
    if command == "map":
        _begin(name, jobs[0], ", ".join(str(job.settings.method.get("name")) for job in jobs))
        import_module("lazybench.cli.map").main([job.settings for job in jobs])
    elif not several:
        _carry_out(name, jobs[0])
    else:
        # The imports below take seconds.
        print(f"checking {len(jobs)} job{'s' * (len(jobs) > 1)} before any starts", flush=True)
        _quiet()
        if name == "run":
            checked, sources = _check(jobs, in_turn, plan=command == "plan")
        else:
            checked, sources = [], None
            _check_settings(name, jobs)
        if command == "plan":
            return 0
        said = _in_turn(name, jobs, sources) if in_turn else _launch(name, sweep)
        from lazybench.cli.comparison import comparison

        if (shown := comparison(checked, in_turn)) is not None:
            print(f"\n{shown}")
        if said:
            raise LazyBenchError(f"{said}; the same command runs what is missing")
    return 0


def _check_settings(name: str, jobs: Sequence[_Job]) -> None:
    """Check the jobs of a sweep of another command than `run` against their models' configs."""
    module = {"speed": "speed.measures", "match": "cli.match", "calibrate": "calibration.setup"}[name]
    check = import_module(f"lazybench.{module}").check
    from lazybench.run.sources import Sources

    sources = Sources()
    for job in jobs:
        check(job.settings, sources)


def _check(jobs: Sequence[_Job], in_turn: bool, plan: bool) -> "tuple[list[RunJob], Sources]":
    """Check every job of a sweep before the first one starts, and where only a plan is asked for, show it."""
    from lazybench.jobs import plan as planning
    from lazybench.model.device import device_of
    from lazybench.run.job import check_job, prepare
    from lazybench.run.sources import Sources

    sources = Sources(plan=plan)
    checked = []
    for job in jobs:
        checked.append(prepare(job.settings, sources))
        check_job(checked[-1])
    launcher = jobs[0].config.hydra.launcher
    if plan:
        planning.show(checked, sources, launcher, in_turn)
        return checked, sources
    if in_turn:
        for job in jobs:
            device_of(job.settings.model)
    else:  # the jobs' machines may have what this one lacks
        said = f"; what they say is in {Path(launcher.submitit_folder).parent}" if "submitit_folder" in launcher else ""
        runs = shlex.quote(jobs[0].settings.output)
        print(f"{len(jobs)} jobs{said}; follow them with: python -m lazybench status runs={runs}", flush=True)
    return checked, sources


def _in_turn(name: str, jobs: Sequence[_Job], sources: "Sources | None") -> str | None:
    """Run the jobs here, those of a model one after the other; returns what to say where some failed."""
    models = [job.settings.model for job in jobs]
    failed = 0
    for job in sorted(jobs, key=lambda job: models.index(job.settings.model)):
        try:
            _carry_out(name, job, *([] if sources is None else [sources]))
        except Busy as error:  # as when a sweep is started anew while its jobs still run
            print(f"{error}: skipped, that process goes on with it")
        except _KNOWN as error:
            failed += 1
            print(f"lazybench: {one_line(str(error))}", file=sys.stderr)
        except Exception:
            failed += 1
            traceback.print_exc()
    return f"{failed} of {len(jobs)} jobs of the sweep failed, as said above" if failed else None


def _launch(name: str, words: Sequence[str]) -> str | None:
    """Have Hydra run the jobs through its launcher; returns what to say where some failed or were lost."""
    GlobalHydra.instance().clear()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else it prints a traceback of its own and leaves
    sys.argv = [f"lazybench {name}", "--multirun", *words]
    main = hydra.main(version_base="1.3", config_path=str(CONF), config_name=settings.file_of(name))
    try:
        main(_launched)()
    except Exception as error:
        said = one_line(str(error))[:300] or type(error).__name__
        return f"jobs of the sweep failed or were lost: {said}; lazybench status tells of every job"
    return None


def _launched(config: DictConfig) -> str:
    """A job of a sweep, in the process that a launcher started for it."""
    about = HydraConfig.get()
    name = next(name for name, schema in SCHEMAS.items() if schema is OmegaConf.get_type(config))
    try:
        if about.launcher._target_.endswith(_NEIGHBOURS):
            one_gpu.claim()
        return _carry_out(name, _Job(settings.read(config, about), OmegaConf.create({"hydra": about})))
    except Busy as error:
        print(f"{error}: skipped, that process goes on with it")
        return ""
    except _KNOWN as error:
        print(f"lazybench: {one_line(str(error))}", file=sys.stderr)
        raise LazyBenchError(str(error)) from None  # which every process can read
    except Exception:
        traceback.print_exc()  # Hydra hands the error on to the driver without it
        raise


def _carry_out(name: str, job: _Job, *sources: "Sources") -> str:
    _begin(name, job)
    module = import_module("lazybench.run.runner" if name == "run" else f"lazybench.cli.{name}")
    import_module("lazybench.run.timing").tell_retaken.cache_clear()
    return str((module.run if name == "run" else module.main)(job.settings, *sources))


def _begin(name: str, job: _Job, methods: str | None = None) -> None:
    """Say what a job is about, and let `sys.argv` and `HydraConfig` be as if it had been started by itself."""
    about, of = job.config.hydra, job.settings
    HydraConfig.instance().set_config(job.config)
    folders = [f"--config-dir={folder}" for folder in own_folders(about)]
    sys.argv = [f"lazybench {name}", *folders, *about.overrides.task]
    named = {}
    for key in ("model", "data", "method", "task", "shard"):
        part = getattr(of, key, None)
        named[key] = part["name"] if isinstance(part, dict) else getattr(part, "name", part)
    named |= {"method": methods} if methods else {}
    # The imports below take seconds.
    print(", ".join(f"{key} {value}" for key, value in named.items() if value is not None), flush=True)
    _quiet()


def _quiet() -> None:
    """Keep libraries from printing warnings, progress bars and marks of their own among what a command says."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler: whatever does not stop it
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
