"""Run the commands that Hydra configures: a job, or the jobs of a sweep, in this process or through a launcher."""

import os
import shlex
import signal
import sys
import traceback
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from lazybench.cli import settings
from lazybench.cli.arguments import add_config_dir, read
from lazybench.config import CONF, SCHEMAS
from lazybench.errors import LazyBenchError, one_line
from lazybench.jobs import one_gpu
from lazybench.store.locks import Busy
from lazyllm import LazyLLMError

if TYPE_CHECKING:
    from lazybench.run.resources import Resources

# Raised for bad input. Any other error is a fault in LazyBench or in the user's own method, and shows its traceback.
_EXPECTED = (LazyBenchError, LazyLLMError, OSError)
# Launchers whose jobs share this machine, and that do not give each its own GPU.
_SHARING_GPUS = ("LocalLauncher", "JoblibLauncher")


class _Job(NamedTuple):
    """A job: its settings, as an object of the command's schema, and the config that Hydra composed."""

    settings: Any
    config: DictConfig


def main(command: str, words: Sequence[str]) -> int:
    """Run a command with its flags and settings in any order.

    Raises:
        LazyBenchError: a word is wrong, or jobs of the sweep failed.
    """
    parser = ArgumentParser(f"lazybench {command}", add_help=False)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", choices=("job",))
    add_config_dir(parser, "also choose from the configs in FOLDER")
    flags = read(parser, words)
    name = "run" if command == "plan" else command
    several = flags.multirun or command in ("plan", "map")
    overrides = [*settings.search_path(flags.config_dir), *flags.settings]
    if command == "plan":
        settings.stand_in_for_launchers()
    configs = settings.compose_jobs(name, overrides, several or flags.cfg is not None)
    if flags.cfg is not None:
        keys = [key for key in configs[0] if key != "hydra"]
        print(OmegaConf.to_yaml(OmegaConf.masked_copy(configs[0], keys)), end="")
        return 0
    launcher = configs[0].hydra.launcher._target_
    in_turn = launcher.endswith(".BasicLauncher")
    if not in_turn and not several:
        raise LazyBenchError("+cluster= chooses where the jobs of a sweep run: add -m, also for a single job")
    jobs = [_Job(settings.read(config, config.hydra), config) for config in configs]
    for warning in dict.fromkeys(warning for job in jobs for warning in settings.literal_escapes(job.settings)):
        print(f"warning: {warning}", file=sys.stderr)
    outputs = [job.settings.output for job in jobs]
    methods = [job.config.hydra.runtime.choices.method if command == "match" else "" for job in jobs]
    has_twice = len({*zip(outputs, methods, strict=True)}) < len(jobs)
    if command in ("speed", "match") and outputs[0] is not None and has_twice:
        raise LazyBenchError(
            f"several jobs would write output={outputs[0]}: add to it what differs, such as ${{method.name}}"
        )
    if several and command != "map":
        print(f"checking {len(jobs)} job{'s' * (len(jobs) > 1)} before any starts", flush=True)
    else:
        _begin(name, jobs[0])
    import_torch()  # takes seconds, so the lines above are printed first
    from lazybench.run.resources import Resources

    if command == "map":
        import_module("lazybench.cli.map").main([job.settings for job in jobs])
        return 0
    resources = Resources(plan=command == "plan")
    checked = [_check(name, job.settings, resources) for job in jobs]
    if command == "plan":
        import_module("lazybench.jobs.plan").show(checked, resources)
        if "[" in launcher:
            print(f"the run needs a launcher that is not installed here: pip install '{launcher}'")
    elif not several:
        _run_job(name, jobs[0].settings, resources, checked[0])
    elif in_turn:
        _run_in_turn(name, jobs, checked, resources)
    else:
        _launch(name, jobs)
    return 0


def import_torch() -> None:
    """Import torch with signals held back, as an interrupt in its C++ code would abort the process; silence it."""
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler: fatal errors only
    try:
        import_module("torch")
        logging = import_module("transformers.utils.logging")
        import_module("transformers.modeling_utils")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _check(name: str, config: Any, resources: "Resources") -> Any:
    """Check a job before weights are loaded; return the prepared job of `run`, or another command's method."""
    functions = {"run": "run.prepare:prepare", "speed": "speed.measure:check", "match": "cli.match:check"}
    return resolve_name(f"lazybench.{functions[name]}")(config, resources)


def _run_job(name: str, config: Any, resources: "Resources", checked: Any) -> None:
    """Run a job in this process; `checked` is the result of `_check`."""
    if name == "run":
        import_module("lazybench.run.execute").run(checked, resources)
    else:
        import_module(f"lazybench.cli.{name}").main(config)


def _run_in_turn(name: str, jobs: Sequence[_Job], checked: Sequence[Any], resources: "Resources") -> None:
    """Run checked jobs in this process, grouped by model; `LazyBenchError` if some failed."""
    from lazybench.model.device import device_of

    models = [job.settings.model for job in jobs]
    for model in models:
        device_of(model)
    pairs = sorted(zip(jobs, checked, strict=True), key=lambda pair: models.index(pair[0].settings.model))
    failed = sum(_attempt(name, job, resources, check) is not None for job, check in pairs)
    if failed:
        raise LazyBenchError(f"{failed} of {len(jobs)} jobs of the sweep failed; the same command runs the rest")


def _attempt(name: str, job: _Job, resources: "Resources", checked: Any = None) -> Exception | None:
    """Run a job of a sweep in this process, and print and return its error; `checked` is the result of `_check`."""
    _begin(name, job)
    try:
        _run_job(name, job.settings, resources, checked or _check(name, job.settings, resources))
    except Busy as error:  # an earlier start of the sweep still runs
        print(f"{error}: skipped, as that process runs it")
    except _EXPECTED as error:
        print(f"lazybench: {one_line(str(error))}", file=sys.stderr)
        return error
    except Exception as error:
        traceback.print_exc()
        return error
    return None


def _launch(name: str, jobs: Sequence[_Job]) -> None:
    """Run jobs through Hydra's launcher; `LazyBenchError` if some failed or were lost."""
    config = jobs[0].config
    status = f"; follow them with: python -m lazybench status runs={shlex.quote(str(jobs[0].settings.output))}"
    print(f"{len(jobs)} jobs{status if name == 'run' else ''}", flush=True)
    GlobalHydra.instance().clear()
    config.hydra.overrides.hydra.append("hydra.mode=MULTIRUN")
    words = [[*job.config.hydra.overrides.task] for job in jobs]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            context = HydraContext(GlobalHydra.instance().hydra.config_loader, Callbacks(config))
            launcher = Plugins.instance().instantiate_launcher(context, _launched, config)
            for job in launcher.launch(words, initial_job_idx=0):
                _ = job.return_value  # raises the job's error
    except Exception as error:
        message = one_line(str(error))[:300] or type(error).__name__
        raise LazyBenchError(
            f"jobs of the sweep failed or were lost: {message}; lazybench status shows every job, and the same command "
            "runs the rest"
        ) from error


def _launched(config: DictConfig) -> None:
    """Run a job of a sweep in the process that a launcher started for it."""
    import_torch()
    from lazybench.run.resources import Resources

    composed = OmegaConf.create({"hydra": HydraConfig.get()})
    name = next(name for name, schema in SCHEMAS.items() if schema is OmegaConf.get_type(config))
    if composed.hydra.launcher._target_.endswith(_SHARING_GPUS):
        one_gpu.claim()
    if error := _attempt(name, _Job(settings.read(config, composed.hydra), composed), Resources()):
        raise LazyBenchError(str(error))  # every process can unpickle it


def _begin(name: str, job: _Job) -> None:
    """Print a job's model, data, method and task; set `sys.argv` and `HydraConfig` as for a single job."""
    HydraConfig.instance().set_config(job.config)
    folders = [f"--config-dir={folder}" for folder in settings.own_folders(job.config.hydra)]
    sys.argv = [f"lazybench {name}", *folders, *job.config.hydra.overrides.task]
    names = []
    for key in ("model", "data", "method", "task", "shard"):
        if value := getattr(job.settings, key, None):
            names.append(f"{key} {value['name'] if key == 'method' else getattr(value, 'name', value)}")
    print(", ".join(names), flush=True)
