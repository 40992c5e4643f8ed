"""Reads LongBench's records, from files or from the hub."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lazybench.data.hub import OutOfReach, unreachable
from lazybench.data.record import Record, parse, to_records
from lazybench.errors import LazyBenchError, first_line

_HUB = "THUDM/LongBench"
_ARCHIVE = "data.zip"
_SUFFIX = ".jsonl"
# What zipfile raises on archives that are damaged, cut short, encrypted, or made in a way it does not know.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)

File = Path | zipfile.Path


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
    with _opened(_from_hub() if root is None else Path(root).expanduser()) as (place, files):
        if dataset not in files:
            found = ", ".join(sorted(files)) or f"no {_SUFFIX} file"
            raise LazyBenchError(f"{place}: no {dataset}{_SUFFIX} there: found {found}")
        with files[dataset].open("rb") as lines:
            rows = parse(lines, files[dataset])
            named = ((where, row | {"dataset": dataset} if row.get("dataset") == like else row) for where, row in rows)
            records = list(to_records(named, dataset, "the file's name"))
    if not records:
        raise LazyBenchError(f"{files[dataset]}: the file is empty: one record a line was expected")
    return records[:limit]


def names(root: str | Path) -> list[str]:
    """Names of the datasets that a folder or archive has a file for, sorted; `LazyBenchError` if it cannot be read."""
    with _opened(Path(root).expanduser()) as (_, files):
        return sorted(files)


@contextmanager
def _opened(place: Path) -> Iterator[tuple[Path, dict[str, File]]]:
    """A folder or archive and the files in it by dataset; what cannot be read of it is said in one line."""
    try:
        if not place.exists():
            raise LazyBenchError(f"{place}: no such folder or archive")
        root: File = place if place.is_dir() else zipfile.Path(place)
        folders = [folder for folder in (root / "data", root) if folder.is_dir()]
        paths = [path for folder in folders for path in folder.iterdir() if path.name.endswith(_SUFFIX)]
        yield place, {path.name.removesuffix(_SUFFIX): path for path in paths if path.is_file()}
    except (OSError, *_UNREADABLE) as error:
        raise LazyBenchError(f"{place}: cannot be read: {first_line(error)}") from error


def _from_hub() -> Path:
    """The archive, from the local cache where the hub cannot be asked: the hub's data itself is a loading script."""
    from huggingface_hub import hf_hub_download

    offline = unreachable()
    try:
        return Path(hf_hub_download(_HUB, _ARCHIVE, repo_type="dataset", local_files_only=offline is not None))
    except Exception as error:  # by the hub library's version: OSError, ValueError or its HTTP client's own
        raise OutOfReach(
            f"{_ARCHIVE} of {_HUB} is neither in the local cache nor to be had from the hub: download it and name it "
            f"with data.root=<path to {_ARCHIVE}> ({offline or first_line(error)})"
        ) from error
