"""Lock files for a process; the lock ends with the process, even if it is killed."""

import fcntl
import os
import time
from pathlib import Path

from lazybench.errors import LazyBenchError

_TIMEOUT_S = 1.0  # a process that only tests the lock has it for a moment


class Busy(LazyBenchError):
    """Another process works on the same files."""


class Lock:
    """A shared or exclusive lock on a file, which is created if it is missing; it is tried for `timeout_s` seconds."""

    def __init__(self, path: Path, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def acquire(self, shared: bool = False) -> bool:
        """Acquire it alone, or together with others that share it; return whether that worked."""
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                fcntl.flock(self._file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > end:
                    return False
                time.sleep(0.05)

    def release(self) -> None:
        """Release it; it can be acquired again."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release it and close the file."""
        os.close(self._file)


def is_locked(path: Path) -> bool:
    """Return whether a process has the exclusive lock on `path`."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
