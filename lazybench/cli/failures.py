"""How a failed job is told: by the job itself where it can, else by the sweep that waits for it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from lazybench.cli import users_fault
from lazybench.cli.messages import explain
from lazybench.errors import LazyBenchError, one_line
from lazyllm import LazyLLMError

# What bad input raises; anything else is a fault of ours and shows its traceback.
KNOWN = (LazyBenchError, LazyLLMError, HydraException, OmegaConfBaseException, OSError)

_TOLD = "told by the job, in process "
# Packages that run jobs elsewhere, and raise exceptions of their own when one does not come back.
_CARRIERS = ("submitit", "joblib", "ray", "concurrent")
_ONWARD = "lazybench status tells of every job; the same command runs what is missing"


def known(error: Exception, method: Mapping[str, Any]) -> Exception | None:
    """What to tell of an error: a fault of the user's method, or bad input; None for a fault of ours."""
    return users_fault.find(error, method) or (error if isinstance(error, KNOWN) else None)


def tell(error: BaseException) -> None:
    """Say why a job ends, and note that on the error: the note goes with it to another process."""
    print(getattr(error, "frames", ""), end="", file=sys.stderr)
    print(f"lazybench: {one_line(explain(error))}", file=sys.stderr)
    error.add_note(f"{_TOLD}{os.getpid()}")


def _notes(error: BaseException | None) -> str:
    return "".join(note for note in getattr(error, "__notes__", ()) if note.startswith(_TOLD))


class QuietFailures(Callback):
    """Keeps Hydra from printing all settings of a failed job that has told why it failed."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if _notes(job_return._return_value):
            job_return.__class__ = _Told


class _Told(JobReturn):
    @property
    def return_value(self) -> NoReturn:
        raise self._return_value


def of_sweep(error: BaseException) -> str | None:
    """What to say of a sweep with jobs that failed or were lost; None where the error comes from elsewhere."""
    if notes := _notes(error):
        if notes == f"{_TOLD}{os.getpid()}":
            return "jobs of the sweep failed, as said above; the same command runs what is missing"
        return f"jobs of the sweep failed: {one_line(explain(error))}; {_ONWARD}"
    if type(error).__module__.partition(".")[0] not in _CARRIERS:
        return None
    # The job was cancelled or killed, or its machine went down.
    if found := re.search(r"Job (\S+) .*\(state: ([^)]+)\)", str(error), re.DOTALL):  # submitit
        reason = f"job {found[1]} ended as {found[2]}"
    else:
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" -=*")]
        reason = f"a job was lost: {lines[-1] if lines else type(error).__name__}"
    return f"{reason}; others may still run; {_ONWARD}"
