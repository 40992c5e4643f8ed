"""Takes the jobs of what would be a sweep for one page."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from lazybench.cli import failures
from lazybench.cli.hydra_app import quiet
from lazybench.cli.sweep import settings_of_jobs, settle
from lazybench.config import MapConfig


class SideBySide(Callback):
    """What Hydra calls before a sweep's launcher: it makes the page, and the sweep ends there."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Make the page of all jobs.

        Raises:
            SystemExit: it is made (0), or cannot be (2). Hydra lets no other exception through.
        """
        jobs: list[MapConfig] = []
        try:
            settle(config)
            jobs += settings_of_jobs(config, MapConfig)
            methods = ", ".join(str(job.method.get("name")) for job in jobs)
            print(f"model {jobs[0].model.name}, methods {methods}", flush=True)  # the imports below take seconds
            quiet()
            from lazybench.cli import map as page

            page.main(jobs)
        except BrokenPipeError:
            sys.exit(1)  # who read the output has gone: there is nobody to tell
        except Exception as error:
            known = [failures.known(error, job.method) for job in jobs] or [failures.known(error, {})]
            told = next((found for found in known if found is not None), None)
            if told is None:
                traceback.print_exc()  # Hydra would make a warning of it and start the jobs
                sys.exit(1)
            failures.tell(told)
            sys.exit(2)
        sys.exit(0)
