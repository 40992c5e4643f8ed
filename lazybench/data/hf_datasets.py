"""Custom records, from whatever `datasets` loads: JSON, CSV, Parquet, a dataset of the hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lazybench.data.hub import reading
from lazybench.errors import LazyBenchError


def read(dataset: str, root: str | None, *, datasets: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `dataset` with LongBench's fields, in order.

    Only `context` and `answers`, a text or a list of texts, need a column. By default `_id` is the row's number,
    `length` the number of words in the context, `input` empty and `language` `en`.

    Args:
        dataset: one of `datasets`.
        root: the folder of the files, `data_dir` of `datasets.load_dataset`; None if `load` has their full paths.
        datasets: settings by dataset: its facts; `load`, the arguments of `datasets.load_dataset`; and `columns`, the
            column of each of LongBench's fields that has another name.

    Raises:
        LazyBenchError: `datasets` cannot load it, or it has no such column.
        OutOfReach: the hub cannot be reached, and its local cache lacks the dataset.
    """
    if not isinstance(arguments := datasets[dataset].get("load"), Mapping):
        raise LazyBenchError(f"dataset {dataset!r}: give load, such as {{path: csv, data_files: {dataset}.csv}}")
    columns = datasets[dataset].get("columns", {})
    for number, row in enumerate(_rows(dataset, {"data_dir": root, **arguments})):
        if missing := [column for column in columns.values() if column not in row]:
            raise LazyBenchError(f"dataset {dataset!r}: there is no column {missing[0]} among {', '.join(row)}")
        row |= {field: row[column] for field, column in columns.items()}
        row = {"_id": number, "input": "", "language": "en", **row, "dataset": dataset}
        row["_id"] = str(row["_id"])
        row.setdefault("length", len(str(row.get("context")).split()))
        if isinstance(row.get("answers"), str | int):
            row["answers"] = [str(row["answers"])]
        yield row


def _rows(dataset: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Load a dataset of one split: local files without a cache, a dataset of the hub through its local cache."""
    import datasets  # takes a second
    from huggingface_hub import constants

    path, files = str(arguments.get("path")), str(arguments.get("data_files", ""))
    is_local = Path(path).exists() or ("/" not in path and "://" not in files)
    advice = "load has the arguments of datasets.load_dataset"
    with TemporaryDirectory() as folder, reading(f"dataset {dataset!r}: {files or path}", advice, is_local) as offline:
        if offline:  # else each request would wait, and be repeated
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)  # it logs what it raises, too
        loaded = datasets.load_dataset(**arguments, streaming=is_local, cache_dir=folder if is_local else None)
        if isinstance(loaded, Mapping):
            if len(loaded) > 1:
                raise LazyBenchError(f"dataset {dataset!r}: load.split is one of {', '.join(map(str, loaded))}")
            (loaded,) = loaded.values()
        yield from loaded
