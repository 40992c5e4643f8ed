"""Writes files and folders whole or not at all, and says in one line where they cannot be written."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from lazybench.errors import LazyBenchError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `LazyBenchError` which says that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise LazyBenchError(f"{path} cannot be written: {error.strerror or error}") from error


def replace(path: Path, content: str | bytes) -> None:
    """Write a file in one step, so that it is never seen half-written.

    A link stays a link, and what is no file, such as /dev/null, is written to and not renamed over.

    Raises:
        LazyBenchError: it cannot be written; the file that was there stays.
    """
    content = content.encode("utf-8") if isinstance(content, str) else content
    with writing(path):
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        # Shards on several machines may write the same file, under the same process id.
        temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
        try:
            with open(temporary, "wb") as file:
                file.write(content)
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
    with writing(out):
        for path in sorted(out.iterdir()) if out.exists() else ():
            if not ours.fullmatch(path.name):
                raise LazyBenchError(f"output={out} holds {path.name}, which no report wrote: choose another folder")
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as place:
            new, old = Path(place, "new"), Path(place, "old")
            new.mkdir()
            yield new
            if out.exists():
                out.rename(old)
            new.rename(out)


def check_writable(path: Path) -> None:
    """Look whether a folder can be written or made, without doing it; raises `LazyBenchError` where it cannot."""
    place = next(place for place in (path, *path.parents) if place.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        reason = "permission denied, or a read-only file system" if place.is_dir() else "Not a directory"
        raise LazyBenchError(f"{path} cannot be written: {reason}")
