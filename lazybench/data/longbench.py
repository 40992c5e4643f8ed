"""Reads LongBench's records, from files or from the hub."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lazybench.data.facts import is_name
from lazybench.data.hub import OutOfReach, unreachable
from lazybench.data.jsonl import parse
from lazybench.data.record import Record, checked, to_records
from lazybench.errors import LazyBenchError, first_line

_HUB = "THUDM/LongBench"
_ARCHIVE = "data.zip"
# Both LongBench's own layout (`data/<dataset>.jsonl`) and a flat one.
_FILE = re.compile(r"(data/)?([\w.-]+)\.jsonl")
# Far above any file of LongBench: a bound on what a damaged or hostile archive may unpack to.
_MAX_BYTES = 1 << 30
# What zipfile raises on archives that are damaged, cut short, encrypted, or made in a way it does not know.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)


def load(dataset: str, root: str | Path | None, limit: int | None, like: str | None = None) -> list[Record]:
    """Read the records of one dataset, in the order of its file.

    Args:
        dataset: the dataset's name.
        root: a folder of `<dataset>.jsonl` files, or one that holds them in `data/`; or LongBench's
            `data.zip`. None takes `data.zip` from the hub, or from its local cache when offline.
        limit: how many records to return, from the first one; None for all. The whole file is checked
            in either case.
        like: another dataset that its records may name as theirs; they become this dataset's.

    Raises:
        LazyBenchError: there is no such file, or a record in it is not in LongBench's format. The
            message names the file and, for a record, the line.
    """
    if limit is not None and limit < 1:
        raise LazyBenchError(f"the number of records must be 1 or more, not {limit}")
    if not is_name(dataset):
        raise LazyBenchError(f"{dataset!r} is no dataset's name")
    path = _from_hub() if root is None else Path(root).expanduser()
    with _opened(path) as (archive, files):
        if dataset not in files:
            found = ", ".join(sorted(files)) or "no .jsonl file"
            raise LazyBenchError(f"{path}: no {dataset}.jsonl there: found {found}")
        source = f"{path}/{files[dataset]}"
        with archive.open(_member(archive, files[dataset], source)) if archive else Path(source).open("rb") as lines:
            renamed = ((where, _renamed(row, like, dataset)) for where, row in parse(lines, source))
            rows = list(checked(renamed, dataset, "the file's name"))
    if not rows:
        raise LazyBenchError(f"{source}: the file is empty: one record a line was expected")
    return to_records(rows[:limit])


def names(root: str | Path) -> list[str]:
    """Names of the datasets that a folder or archive has a file for, sorted.

    Raises:
        LazyBenchError: there is no such folder or archive, or it cannot be read.
    """
    with _opened(Path(root).expanduser()) as (_, files):
        return sorted(files)


def _from_hub() -> Path:
    """The archive from the local cache, else from the hub.

    The hub's `LongBench` is a loading script, which `datasets` 4 and later refuse: only its archive is used.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # The cache comes first: asking the hub about a cached file takes long where there is no network.
        with suppress(LocalEntryNotFoundError):
            return Path(hf_hub_download(_HUB, _ARCHIVE, repo_type="dataset", local_files_only=True))
        if offline := unreachable():
            raise OSError(offline)
        return Path(hf_hub_download(_HUB, _ARCHIVE, repo_type="dataset"))
    except Exception as error:  # by the hub library's version: OSError, ValueError or its HTTP client's own
        raise OutOfReach(
            f"{_ARCHIVE} of {_HUB} is neither in the local cache nor to be had from the hub: "
            f"download it and name it with data.root=<path to {_ARCHIVE}> ({first_line(error)})"
        ) from error


@contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile | None, dict[str, str]]]:
    """Open a folder or archive: yields the archive, None for a folder, and the datasets' files in it by dataset.

    What cannot be read of it, here or in the body of the `with` statement, is said in one line.
    """
    try:
        if path.is_dir():
            there = (file for pattern in ("*.jsonl", "data/*.jsonl") for file in path.glob(pattern) if file.is_file())
            yield None, _by_dataset(file.relative_to(path).as_posix() for file in there)
        elif path.is_file():
            with zipfile.ZipFile(path) as archive:
                yield archive, _by_dataset(archive.namelist())
        else:
            raise LazyBenchError(f"{path}: no such folder or archive")
    except (OSError, *_UNREADABLE) as error:
        # An archive that is damaged names places in itself that are not there, which is an OSError without a file.
        if isinstance(error, OSError) and (error.filename is not None or not path.is_file()):
            raise LazyBenchError(f"{error.filename or path}: cannot be read: {error.strerror or error}") from error
        raise LazyBenchError(
            f"{path}: neither a folder of <dataset>.jsonl files nor a readable zip archive of them ({error})"
        ) from error


def _renamed(row: dict[str, Any], like: str | None, dataset: str) -> dict[str, Any]:
    return row | {"dataset": dataset} if like is not None and row.get("dataset") == like else row


def _by_dataset(files: Iterable[str]) -> dict[str, str]:
    """The files of datasets by dataset; a flat one goes before one in `data/`."""
    found = [match for file in files if (match := _FILE.fullmatch(file))]
    return {match[2]: match[0] for match in sorted(found, key=lambda match: match[1] or "", reverse=True)}


def _member(archive: zipfile.ZipFile, name: str, source: str) -> zipfile.ZipInfo:
    # The member is read as a stream and never unpacked, so that its name cannot become a path.
    info = archive.getinfo(name)
    if info.file_size > _MAX_BYTES:
        raise LazyBenchError(f"{source}: unpacks to {info.file_size} bytes; {_MAX_BYTES} are allowed")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # zipfile unpacks the others by whole blocks, of any size, whatever the archive says of them.
        raise LazyBenchError(f"{source}: compressed in a way other than deflate: pack it anew")
    return info
