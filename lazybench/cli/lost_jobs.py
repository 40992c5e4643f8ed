"""What a sweep's driver says when a job in another process or on another machine did not end well."""

from __future__ import annotations

import os
import re

from lazybench.cli.messages import explain
from lazybench.errors import one_line

_SAID = "said by the job, in process "
# Packages that run jobs elsewhere, and raise exceptions of their own when one does not come back.
_CARRIERS = ("submitit", "joblib", "ray", "concurrent")
_ONWARD = "lazybench status tells of every job; the same command runs what is missing"


def mark_said(error: BaseException) -> None:
    """Note that a job has told its user of the error; the note travels with it."""
    error.add_note(f"{_SAID}{os.getpid()}")


def was_said(error: BaseException | None) -> bool:
    """Whether a job has told of the error, here or elsewhere."""
    return any(note.startswith(_SAID) for note in getattr(error, "__notes__", ()))


def is_lost(error: BaseException) -> bool:
    """Whether a job ended without an answer: cancelled, killed, or on a machine that went down."""
    return type(error).__module__.partition(".")[0] in _CARRIERS


def message(error: BaseException) -> str:
    """What to say of a sweep with jobs that failed or were lost."""
    if f"{_SAID}{os.getpid()}" in getattr(error, "__notes__", ()):
        return "jobs of the sweep failed, as said above; the same command runs what is missing"
    if was_said(error):
        return f"jobs of the sweep failed: {one_line(explain(error))}; {_ONWARD}"
    text = str(error)
    if found := re.search(r"Job (\S+) .*\(state: ([^)]+)\)", text, re.DOTALL):  # submitit
        reason = f"job {found[1]} ended as {found[2]}"
    else:
        lines = [line.strip() for line in text.splitlines() if line.strip(" -=*")]
        reason = f"a job was lost: {lines[-1] if lines else type(error).__name__}"
    return f"{reason}; others may still run; {_ONWARD}"
