"""Checks every job of a sweep before the first one starts, and plans it where only that is asked for."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, open_dict

from lazybench.cli import users_fault
from lazybench.cli.hydra_app import IN_TURN, KNOWN, read_settings
from lazybench.cli.messages import explain
from lazybench.config import RunConfig
from lazybench.errors import LazyBenchError, one_line

if TYPE_CHECKING:
    from lazybench.run.job import Job, Sources

_BASIC = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"


class SweepCheck(Callback):
    """Hydra's word for what runs before a sweep's launcher, on the machine that drives it.

    Args:
        plan: print what the sweep would do, and end there.
    """

    def __init__(self, plan: bool = False) -> None:
        self.plan = plan

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check all jobs, then note them as planned.

        Raises:
            SystemExit: a job cannot work (2), or only a plan was asked for (0). Hydra lets no other exception through.
        """
        try:
            if config.hydra.sweeper._target_ == _BASIC:
                self._start(config)
            elif self.plan:
                raise LazyBenchError("hydra/sweeper: it chooses its jobs as it goes, so there is no plan of them")
        except KNOWN as error:
            print(f"lazybench: {one_line(explain(error))}", file=sys.stderr)
            sys.exit(2)
        except Exception:
            traceback.print_exc()  # Hydra would make a warning of it and start the jobs
            sys.exit(1)
        if self.plan:
            sys.exit(0)

    def _start(self, config: DictConfig) -> None:
        import transformers

        from lazybench.jobs import cluster, plan
        from lazybench.jobs.outlook import Outlook
        from lazybench.model.device import device_of
        from lazybench.run.job import Sources
        from lazybench.store.states import StateFile

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        sources = Outlook() if self.plan else Sources()
        jobs = _checked(list(_settings(config)), sources)
        launcher = config.hydra.launcher._target_.rpartition(".")[2]
        warnings = cluster.check(launcher, jobs)
        for text in warnings:
            print(f"warning: {text}", file=sys.stderr)
        if self.plan:
            plan.show(jobs, sources)
            return
        if launcher == IN_TURN:  # else the jobs' machines may have what this one lacks
            for job in jobs:
                device_of(job.config.model)
        for job in jobs:
            StateFile(job.config).plan()
        if launcher != IN_TURN:
            folder = config.hydra.launcher.get("submitit_folder")
            said = f"; what they say is in {Path(folder).parent}" if folder else ""
            print(f"{len(jobs)} jobs{said}; follow them with: python -m lazybench status runs={jobs[0].config.output}")


def _settings(config: DictConfig) -> Iterator[RunConfig]:
    """The settings of each job, as Hydra's own sweeper makes them."""
    loader = GlobalHydra.instance().config_loader()
    words = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    overrides = OverridesParser.create(config_loader=loader).parse_overrides([*words, *config.hydra.overrides.task])
    for batch in BasicSweeper.split_arguments(overrides, max_batch_size=None):
        for job in batch:
            composed = loader.load_sweep_config(config, list(job))
            hydra = composed.hydra
            with open_dict(composed):
                del composed["hydra"]
            yield read_settings(composed, RunConfig, hydra)


def _checked(configs: list[RunConfig], sources: Sources) -> list[Job]:
    """Every job, checked.

    Raises:
        LazyBenchError: jobs that cannot work; the message is the first one's.
    """
    from lazybench.run.job import check_job, prepare

    jobs, wrong, frames = [], [], []
    for config in configs:
        try:
            job = prepare(config, sources)
            check_job(job, sources)
            jobs.append(job)
        except Exception as error:
            fault = users_fault.find(error, config.method)
            if fault is None and not isinstance(error, KNOWN):
                raise
            wrong.append(explain(error) if fault is None else fault.said)
            frames.append("" if fault is None else fault.frames)
    if wrong:
        print(frames[0], end="", file=sys.stderr)
        others = len(set(wrong)) - 1
        raise LazyBenchError(wrong[0] + (f" (and {others} more: correct this one to see the next)" if others else ""))
    return jobs
