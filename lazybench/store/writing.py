"""Writes files and folders whole or not at all, and says in one line where they cannot be written."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lazybench.errors import LazyBenchError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line that `path` cannot be written.

    Raises:
        LazyBenchError: writing it failed.
    """
    try:
        yield
    except OSError as error:
        kept = "; the records already there stay valid" if _holds_records(path) else ""
        raise LazyBenchError(f"{path} cannot be written: {error.strerror or error}{kept}") from error


def replace(path: Path, text: str) -> None:
    """Write a file in one step, so that it is never seen half-written.

    A link stays a link, and what is no file, such as /dev/null, is written to and not renamed over.

    Raises:
        LazyBenchError: it cannot be written; the file that was there stays.
    """
    with writing(path):
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():
            path.write_text(text, "utf-8")
            return
        # Shards on several machines may write the same file, under the same process id.
        temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def replacing(out: Path, ours: re.Pattern[str]) -> Iterator[Path]:
    """A new folder that takes the place of `out` once everything is in it; on an error `out` stays as it was.

    Args:
        out: the folder.
        ours: names of the files that may be replaced with it.

    Raises:
        LazyBenchError: `out` holds other files, or cannot be written.
    """
    out = Path(os.path.realpath(out))
    if out.exists() and not out.is_dir():
        raise LazyBenchError(f"output={out} is not a folder")
    for path in sorted(out.iterdir()) if out.exists() else ():
        if not ours.fullmatch(path.name):
            raise LazyBenchError(f"output={out} holds {path.name}, which no report wrote: choose another folder")
    new, old = (out.with_name(f".{out.name}.{os.getpid()}.{state}") for state in ("new", "old"))
    try:
        new.mkdir(parents=True)
        yield new
        if out.exists():
            out.rename(old)
        new.rename(out)
    except OSError as error:
        raise LazyBenchError(f"output={out} cannot be written: {error.strerror or error}") from error
    finally:
        # A half-made swap leaves no folder: the earlier one goes back.
        if old.exists() and not out.exists():
            old.rename(out)
        for folder in (new, old):
            shutil.rmtree(folder, ignore_errors=True)


def check_writable(path: Path) -> None:
    """Look whether a folder can be written or made, without doing it.

    Raises:
        LazyBenchError: it cannot.
    """
    place = next(place for place in (path, *path.parents) if place.exists())
    with writing(path):
        system = os.statvfs(place)
        for wrong, number in (
            (not place.is_dir(), errno.ENOTDIR),
            (system.f_flag & os.ST_RDONLY, errno.EROFS),
            (not os.access(place, os.W_OK | os.X_OK), errno.EACCES),
            (system.f_blocks and not system.f_bavail, errno.ENOSPC),
        ):
            if wrong:
                raise OSError(number, os.strerror(number))


def _holds_records(path: Path) -> bool:
    """Whether a run's folder, or that of one of its files, has records in it."""
    folder = path if path.is_dir() else path.parent
    with suppress(OSError):
        return any(b"\n" in file.read_bytes() for file in folder.glob("predictions*.jsonl"))
    return False
