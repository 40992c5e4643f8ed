"""File locks between processes; a lock ends with its process, even if that is killed."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lazybench.errors import LazyBenchError
from lazybench.store.writing import writing

_TIMEOUT_S = 1.0  # a process that only tests the lock holds it for a moment


class Busy(LazyBenchError):
    """Another process works on the same files."""


class Lock:
    """A shared or exclusive lock on a file, created if missing; `acquire` waits at most `timeout_s` seconds."""

    def __init__(self, path: Path, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def acquire(self, shared: bool = False) -> bool:
        """Acquire the lock, exclusively or `shared`; return whether that worked."""
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                fcntl.flock(self._file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > end:
                    return False
                time.sleep(0.05)

    def close(self) -> None:
        """Release the lock and close its file."""
        os.close(self._file)


@contextmanager
def locked(path: Path, timeout_s: float = _TIMEOUT_S, work: str | None = None) -> Iterator[None]:
    """Hold the exclusive lock on `path`, whose folder is made; `Busy` if another process has it for `timeout_s`.

    `work` describes in the message what that process does; by default it is at work in the folder.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = Lock(path, timeout_s)
    with closing(lock):
        if not lock.acquire():
            raise Busy(f"another process {work or f'is at work in {path.parent}'}")
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process holds the exclusive lock on `path`."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
