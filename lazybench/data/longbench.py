"""LongBench's records, from a folder, an archive or the hub."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from lazybench.data.hub import explain_errors
from lazybench.data.record import Record, parse, to_records
from lazybench.errors import LazyBenchError

_HUB = "THUDM/LongBench"
_ARCHIVE = "data.zip"
_SUFFIX = ".jsonl"

File = Path | zipfile.Path


def load(dataset: str, root: str | Path | None, limit: int | None, like: str | None = None) -> list[Record]:
    """Read the records of one dataset, in the order of its file.

    Args:
        dataset: the dataset's name.
        root: a folder or archive of `<dataset>.jsonl` files, at its top or in `data/`. None takes LongBench's
            `data.zip` from the hub, or from its local cache when offline.
        limit: number of records to return; None for all. The whole file is checked in either case.
        like: another dataset that its records may name as theirs; they become this dataset's.

    Raises:
        LazyBenchError: there is no such file, or a record in it is not in LongBench's format. The message names the
            file and, for a record, the line.
    """
    root = download() if root is None else Path(root).expanduser()
    with _open(root) as files:
        if dataset not in files:
            raise LazyBenchError(f"{root}: no {dataset}{_SUFFIX} there: found {', '.join(sorted(files))}")
        rows = parse(_lines(files[dataset]), files[dataset])
        rows = ((where, row | {"dataset": dataset} if row.get("dataset") == like else row) for where, row in rows)
        records = list(to_records(rows, dataset))
    if not records:
        raise LazyBenchError(f"{files[dataset]}: the file is empty: one record per line was expected")
    return records[:limit]


def names(root: str | Path) -> list[str]:
    """List the datasets that a folder or archive has a file for; `LazyBenchError` if it cannot be read."""
    with _open(Path(root).expanduser()) as files:
        return sorted(files)


@contextmanager
def _open(root: Path) -> Iterator[dict[str, File]]:
    """Find the files of a folder or archive, by dataset, to be read in the body; see `hub.explain_errors`."""
    with explain_errors(str(root), f"give a folder of {_SUFFIX} files or a {_ARCHIVE}", is_local=True):
        top: File = root if root.is_dir() else zipfile.Path(root)
        folders = [folder for folder in (top / "data", top) if folder.is_dir()]
        paths = [path for folder in folders for path in folder.iterdir() if path.name.endswith(_SUFFIX)]
        yield {path.name.removesuffix(_SUFFIX): path for path in paths if path.is_file()}


def _lines(file: File) -> Iterator[bytes]:
    """Yield the lines of a file.

    They are read as text, since Arrow guesses types from JSON (a question that looks like a date becomes one) and
    refuses lone surrogates. Latin-1 keeps each byte, so that `parse` can name the line that is not UTF-8. A member of
    an archive is extracted first: opened inside one, `datasets` reads it in the locale's encoding.
    """
    import datasets  # takes a second

    with TemporaryDirectory() as folder:  # `datasets` puts locks into its cache, a shared folder
        path = file if isinstance(file, Path) else file.root.extract(file.at, folder)
        files = escape(str(Path(path).absolute()))
        rows = datasets.load_dataset(
            "text", data_files=files, split="train", streaming=True, encoding="latin-1", cache_dir=folder
        )
        for row in rows:
            yield row["text"].encode("latin-1")


@cache
def download(repository: str = _HUB) -> Path:
    """Return LongBench's archive in the hub's local cache; the newest one is fetched if the hub can be reached.

    `repository` is one with another archive of this form.
    """
    from huggingface_hub import hf_hub_download

    advice = f"download it, and give data.root=<path to {_ARCHIVE}>"
    with explain_errors(f"{_ARCHIVE} of {repository}", advice) as offline:
        return Path(hf_hub_download(repository, _ARCHIVE, repo_type="dataset", local_files_only=offline))
