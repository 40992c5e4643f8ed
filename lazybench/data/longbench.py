"""Reads LongBench's records, from files or from the hub."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lazybench.data.hub import unreachable
from lazybench.data.jsonl import is_strings, kind, parse
from lazybench.data.record import Record
from lazybench.errors import LazyBenchError, first_line

_HUB = "THUDM/LongBench"
_ARCHIVE = "data.zip"
# Both LongBench's own layout (`data/<dataset>.jsonl`) and a flat one.
_FOLDERS = ("", "data/")
# Far above any file of LongBench: a bound on what a damaged or hostile archive may unpack to.
_MAX_BYTES = 1 << 30

# What zipfile raises on archives that are damaged, cut short, encrypted, or made in a way it does not know.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)

_TEXT_FIELDS = ("input", "context", "dataset", "language", "_id")
_FIELDS = (*_TEXT_FIELDS, "answers", "all_classes", "length")

# JSON can write half of a surrogate pair, but neither UTF-8 nor a tokenizer can hold one.
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def load(dataset: str, root: str | Path | None, limit: int | None) -> list[Record]:
    """Read the records of one dataset, in the order of its file.

    Args:
        dataset: the dataset's name.
        root: a folder of `<dataset>.jsonl` files, or one that holds them in `data/`; or LongBench's
            `data.zip`. None takes `data.zip` from the hub, or from its local cache when offline.
        limit: how many records to return, from the first one; None for all. The whole file is checked
            in either case.

    Raises:
        LazyBenchError: there is no such file, or a record in it is not in LongBench's format. The
            message names the file and, for a record, the line.
    """
    if limit is not None and limit < 1:
        raise LazyBenchError(f"the number of records must be 1 or more, not {limit}")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", dataset, re.ASCII):
        raise LazyBenchError(f"{dataset!r} is no dataset's name")
    path = _from_hub() if root is None else Path(root).expanduser()
    with _told(path), _lines(dataset, path) as (lines, source):
        rows = list(_rows(lines, source, dataset))
    if not rows:
        raise LazyBenchError(f"{source}: the file is empty: one record a line was expected")
    return [_record(row) for row in _through_datasets(rows[:limit])]


def names(root: str | Path) -> list[str]:
    """Names of the datasets that there is a file for, sorted.

    Args:
        root: a folder or archive, as for `load`.

    Raises:
        LazyBenchError: there is no such folder or archive, or it cannot be read.
    """
    path = Path(root).expanduser()
    with _told(path):
        if path.is_dir():
            return _in_folder(path)
        if path.is_file():
            with zipfile.ZipFile(path) as archive:
                return _in_archive(archive)
    raise _nothing_at(path)


def _from_hub() -> Path:
    """The archive from the local cache, else from the hub.

    The hub's `LongBench` is a loading script, which `datasets` 4 and later refuse: only its archive is used.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # The cache comes first: asking the hub about a cached file takes long where there is no network.
        try:
            return Path(hf_hub_download(_HUB, _ARCHIVE, repo_type="dataset", local_files_only=True))
        except LocalEntryNotFoundError:
            if offline := unreachable():
                raise LazyBenchError(offline) from None
            return Path(hf_hub_download(_HUB, _ARCHIVE, repo_type="dataset"))
    except Exception as error:  # by the hub library's version: OSError, ValueError or its HTTP client's own
        reason = str(error) if isinstance(error, LazyBenchError) else first_line(error)
        raise LazyBenchError(
            f"{_ARCHIVE} of {_HUB} is neither in the local cache nor to be had from the hub: "
            f"download it and name it with data.root=<path to {_ARCHIVE}> ({reason})"
        ) from error


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say in one line that what lies at `path` cannot be read."""
    try:
        yield
    except OSError as error:
        if error.filename is None and path.is_file():
            raise _unreadable(path, error) from error  # places in the archive that are not there
        raise LazyBenchError(f"{error.filename or path}: cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


@contextmanager
def _lines(dataset: str, path: Path) -> Iterator[tuple[Iterable[bytes], str]]:
    """Open the dataset's file at `path`; yields its lines, and its name for messages."""
    if path.is_dir():
        with _open_in_folder(dataset, path) as file:
            yield file, file.name
    elif path.is_file():
        with zipfile.ZipFile(path) as archive, archive.open(_member(dataset, archive, path)) as file:
            yield file, f"{path}/{file.name}"
    else:
        raise _nothing_at(path)


def _nothing_at(path: Path) -> LazyBenchError:
    return LazyBenchError(f"{path}: no such folder or archive")


def _unreadable(path: Path, error: Exception) -> LazyBenchError:
    return LazyBenchError(
        f"{path}: neither a folder of <dataset>.jsonl files nor a readable zip archive of them ({error})"
    )


def _open_in_folder(dataset: str, folder: Path) -> IO[bytes]:
    for inner in _FOLDERS:
        path = folder / inner / f"{dataset}.jsonl"
        if path.is_file():
            return path.open("rb")
    raise _missing(dataset, folder, _in_folder(folder))


def _in_folder(folder: Path) -> list[str]:
    """Names of the datasets in a folder, sorted."""
    return sorted({path.stem for inner in _FOLDERS for path in (folder / inner).glob("*.jsonl") if path.is_file()})


def _member(dataset: str, archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    # The member is read as a stream and never unpacked, so that its name cannot become a path.
    members = {info.filename: info for info in archive.infolist()}
    for inner in _FOLDERS:
        info = members.get(f"{inner}{dataset}.jsonl")
        if info is None:
            continue
        if info.file_size > _MAX_BYTES:
            raise LazyBenchError(f"{path}/{info.filename}: unpacks to {info.file_size} bytes; {_MAX_BYTES} are allowed")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # zipfile unpacks the others by whole blocks, of any size, whatever the archive says of them.
            raise LazyBenchError(f"{path}/{info.filename}: compressed in a way other than deflate: pack it anew")
        return info
    raise _missing(dataset, path, _in_archive(archive))


def _in_archive(archive: zipfile.ZipFile) -> list[str]:
    """Names of the datasets in an archive, sorted."""
    found = [re.fullmatch(r"(data/)?([\w.-]+)\.jsonl", name) for name in archive.namelist()]
    return sorted({match[2] for match in found if match})


def _missing(dataset: str, path: Path, there: list[str]) -> LazyBenchError:
    found = ", ".join(there) or "no .jsonl file"
    return LazyBenchError(f"{path}: no {dataset}.jsonl there: found {found}")


def _rows(lines: Iterable[bytes], source: str, dataset: str) -> Iterator[dict[str, Any]]:
    """Check each record; yields its LongBench fields and leaves out any other."""
    seen: dict[str, str] = {}
    for where, row in parse(lines, source):
        wrong = _wrong(row, dataset)
        if wrong:
            raise LazyBenchError(f"{where}: {wrong}")
        if row["_id"] in seen:
            raise LazyBenchError(f"{where}: '_id' {row['_id']!r} stands already at {seen[row['_id']]}")
        seen[row["_id"]] = where
        yield {field: row[field] for field in _FIELDS}


def _wrong(row: dict[str, Any], dataset: str) -> str | None:
    """What keeps `row` from being a record of `dataset`; None where nothing does."""
    for field in _FIELDS:
        if field not in row:
            return f"the field {field!r} is missing"
    for field in _TEXT_FIELDS:
        if not isinstance(row[field], str):
            return f"{field!r} must be a string, not {kind(row[field])}"
    if not is_strings(row["answers"]):
        return "'answers' must be a list of one string or more"
    if row["all_classes"] is not None and not is_strings(row["all_classes"]):
        return "'all_classes' must be null or a list of one string or more"
    length = row["length"]
    if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length < 1 << 63:
        return "'length' must be a whole number of words"
    if row["dataset"] != dataset:
        return f"'dataset' must be {dataset!r}, like the file's name, not {row['dataset']!r}"
    if not row["_id"]:
        return "'_id' must not be empty"
    for field in _FIELDS:
        for text in row[field] if isinstance(row[field], list) else [row[field]]:
            if isinstance(text, str) and _HALF_PAIR.search(text):
                return f"{field!r} holds half of a surrogate pair (\\ud800 to \\udfff)"
    return None


def _through_datasets(rows: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Hold the rows as a typed, in-memory `datasets.Dataset`.

    `load_dataset("json")` is of no use here: it guesses each column's type before it looks at the declared
    features, and so rewrites strings that look like dates. It would also leave a copy in the user's cache.
    """
    from datasets import Dataset, Features, List, Value

    text, texts = Value("string"), List(Value("string"))
    features = Features(
        dict.fromkeys(_TEXT_FIELDS, text) | {"answers": texts, "all_classes": texts, "length": Value("int64")}
    )
    return Dataset.from_list(rows, features=features)


def _record(row: dict[str, Any]) -> Record:
    classes = row["all_classes"]
    return Record(
        id=row["_id"],
        dataset=row["dataset"],
        input=row["input"],
        context=row["context"],
        answers=tuple(row["answers"]),
        all_classes=None if classes is None else tuple(classes),
        length=row["length"],
        language=row["language"],
    )
