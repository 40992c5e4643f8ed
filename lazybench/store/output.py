"""Replaces an earlier report as a whole."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lazybench.errors import LazyBenchError

_OURS = re.compile(r"(table\d|fidelity)\.(md|csv|tex)|figure\d_.*\.(png|pdf)|records|report\.html")


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of `out` once everything is in it; on an error `out` stays as it was.

    Raises:
        LazyBenchError: `out` holds files that no report wrote, or cannot be written.
    """
    out = Path(os.path.realpath(out))
    _check(out)
    new, old = (out.with_name(f".{out.name}.{os.getpid()}.{state}") for state in ("new", "old"))
    try:
        new.mkdir(parents=True)
        yield new
        if out.exists():
            out.rename(old)
        new.rename(out)
    except OSError as error:
        raise LazyBenchError(f"out={out} cannot be written: {error.strerror or error}") from error
    finally:
        # A half-made swap leaves no report: the earlier one goes back.
        if old.exists() and not out.exists():
            old.rename(out)
        for folder in (new, old):
            shutil.rmtree(folder, ignore_errors=True)


def _check(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise LazyBenchError(f"out={out} is not a folder")
    for path in sorted(out.iterdir()):
        if not _OURS.fullmatch(path.name):
            raise LazyBenchError(f"out={out} holds {path.name}, which no report wrote: choose another folder")
