"""Checks every job of a sweep before the first one starts, and plans it where only that is asked for."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lazybench.cli import failures
from lazybench.cli.hydra_app import IN_TURN, quiet, read_settings
from lazybench.cli.messages import explain
from lazybench.cli.precheck import one_or_several
from lazybench.cli.users_fault import UsersFault
from lazybench.config import RunConfig
from lazybench.errors import LazyBenchError

if TYPE_CHECKING:
    from lazybench.run.job import Job
    from lazybench.run.sources import Sources

Settings = TypeVar("Settings")
_BASIC = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"


class SweepCheck(Callback):
    """What Hydra calls before a sweep's launcher, on the machine that drives the sweep.

    Args:
        plan: print what the sweep would do, and end there.
    """

    def __init__(self, plan: bool = False) -> None:
        self.plan = plan
        self._jobs: list[Job] = []

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check all jobs.

        Raises:
            SystemExit: a job cannot work (2), or only a plan was asked for (0). Hydra lets no other exception through.
        """
        try:
            settle(config)
            if OmegaConf.get_type(config) is not RunConfig:
                if self.plan:
                    raise LazyBenchError(
                        "--config-name: the config lacks LazyBench's settings: begin it with defaults: [config]"
                    )
                return
            if config.hydra.sweeper._target_ == _BASIC:
                self._start(config)
            elif self.plan:
                raise LazyBenchError("hydra/sweeper: it chooses its jobs as it goes, so there is no plan of them")
        except failures.KNOWN as error:
            failures.tell(error)
            sys.exit(2)
        except Exception:
            traceback.print_exc()  # Hydra would make a warning of it and start the jobs
            sys.exit(1)
        if self.plan:
            sys.exit(0)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Show the runs side by side."""
        if self._jobs:
            from lazybench.cli.comparison import comparison

            if (shown := comparison(self._jobs)) is not None:
                print(f"\n{shown}")

    def _start(self, config: DictConfig) -> None:
        configs = list(settings_of_jobs(config, RunConfig))
        # The imports below take seconds.
        count = "1 job" if len(configs) == 1 else f"{len(configs)} jobs"
        print(f"checking {count} before any starts", flush=True)
        from lazybench.jobs import cluster, plan
        from lazybench.model.device import device_of
        from lazybench.run.sources import Sources

        quiet()
        sources = Sources(plan=self.plan)
        jobs = _checked(configs, sources)
        if self.plan:
            plan.show(jobs, sources, config.hydra.launcher)
            return
        launcher = config.hydra.launcher._target_.rpartition(".")[2]
        for text in cluster.check(launcher, jobs):
            print(f"warning: {text}", file=sys.stderr)
        if launcher == IN_TURN:  # else the jobs' machines may have what this one lacks
            for job in jobs:
                device_of(job.config.model)
        self._jobs = jobs
        if launcher != IN_TURN:
            folder = config.hydra.launcher.get("submitit_folder")
            said = f"; what they say is in {Path(folder).parent}" if folder else ""
            print(f"{len(jobs)} jobs{said}; follow them with: python -m lazybench status runs={jobs[0].config.output}")


def settle(config: DictConfig) -> None:
    """Let what is given on the command line replace what an experiment sweeps over: Hydra would take both.

    Stages may be of one schedule or of several; only an experiment that sweeps over schedules tells which.
    """
    words, swept = config.hydra.overrides.task, config.hydra.sweeper.get("params") or {}
    by_experiment = {key.lstrip("+"): key for key in swept}
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        if key in by_experiment:
            with read_write(config.hydra), open_dict(swept):
                swept.pop(by_experiment[key], None)
        elif said := one_or_several(word):
            raise LazyBenchError(said)


def settings_of_jobs(config: DictConfig, kind: type[Settings]) -> Iterator[Settings]:
    """The settings of each job, as Hydra's own sweeper makes them, as objects of the schema `kind`."""
    loader = GlobalHydra.instance().config_loader()
    words = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    overrides = OverridesParser.create(config_loader=loader).parse_overrides([*words, *config.hydra.overrides.task])
    for batch in BasicSweeper.split_arguments(overrides, max_batch_size=None):
        for job in batch:
            composed = loader.load_sweep_config(config, list(job))
            hydra = composed.hydra
            with open_dict(composed):
                del composed["hydra"]
            yield read_settings(composed, kind, hydra)


def _checked(configs: list[RunConfig], sources: Sources) -> list[Job]:
    """Every job, checked.

    Raises:
        LazyBenchError: jobs that cannot work; the message is the first one's.
    """
    from lazybench.run.job import check_job, prepare

    jobs, wrong = [], []
    for config in configs:
        try:
            job = prepare(config, sources)
            check_job(job, sources)
            jobs.append(job)
        except Exception as error:
            known = failures.known(error, config.method)
            if known is None:
                raise
            wrong.append(known)
    if wrong:
        said = list(dict.fromkeys(map(explain, wrong)))
        more = f" (and {len(said) - 1} more: correct this one to see the next)" if len(said) > 1 else ""
        frames = getattr(wrong[0], "frames", None)
        raise LazyBenchError(said[0] + more) if frames is None else UsersFault(said[0] + more, frames)
    return jobs
