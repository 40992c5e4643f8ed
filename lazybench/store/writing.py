"""Write files and folders atomically."""

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
    """Turn an `OSError` into a `LazyBenchError`: `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise LazyBenchError(f"{path} cannot be written: {error.strerror or error}") from error


def replace(path: Path, content: str | bytes) -> None:
    """Write a file atomically.

    A symbolic link is kept and its target replaced; a device such as /dev/null is written directly.

    Raises:
        LazyBenchError: it cannot be written; an existing file is unchanged.
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
    """Yield a new folder that replaces `out` at the end of the block; after an error `out` is unchanged.

    Raises:
        LazyBenchError: `out` has files whose names are not `ours`, or cannot be written.
    """
    out = Path(os.path.realpath(out))
    with writing(out):
        for path in sorted(out.iterdir()) if out.exists() else ():
            if not ours.fullmatch(path.name):
                raise LazyBenchError(f"output={out} holds {path.name}, which no report wrote: choose another folder")
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
            new, old = Path(temporary, "new"), Path(temporary, "old")
            new.mkdir()
            yield new
            if out.exists():
                out.rename(old)
            new.rename(out)


def check_writable(path: Path) -> None:
    """Raise `LazyBenchError` if a folder cannot be written or made; nothing is written."""
    folder = next(folder for folder in (path, *path.parents) if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        reason = "permission denied, or a read-only file system" if folder.is_dir() else "Not a directory"
        raise LazyBenchError(f"{path} cannot be written: {reason}")
