"""Locks on files, which end with the process that holds them, even where it is killed."""

import fcntl
import os
import time
from pathlib import Path

from lazybench.errors import LazyBenchError

# Long enough for a process that only looks at the lock; and, where the scheduler has started a job anew, for a file
# server to find out that a machine went down.
_PATIENCE_S, _RESTARTED_PATIENCE_S = 1.0, 180.0


class Busy(LazyBenchError):
    """Another process is at work where this one wanted to be."""


class Lock:
    """A lock on a file, which is made where it is missing, shared or exclusive, held until it is released.

    Args:
        path: the file.
        patience_s: seconds to try for; None means long enough for those who only look at it.
    """

    def __init__(self, path: Path, patience_s: float | None = None) -> None:
        usual = _RESTARTED_PATIENCE_S if is_restarted() else _PATIENCE_S
        self._patience_s = usual if patience_s is None else patience_s
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def take(self, shared: bool = False) -> bool:
        """Hold it alone, or together with others that share it; returns whether that could be had."""
        end = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.flock(self._file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > end:
                    return False
                time.sleep(0.05)

    def release(self) -> None:
        """Let others have it."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release it for good."""
        os.close(self._file)


def is_restarted() -> bool:
    """Whether Slurm has started this job before, on a machine that may have gone down with its locks."""
    return "SLURM_RESTART_COUNT" in os.environ


def is_held(path: Path) -> bool:
    """Whether a process holds the lock on `path` alone."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
