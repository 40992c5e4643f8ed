"""Custom records, from whatever `datasets` loads: JSON, CSV, Parquet, a dataset of the hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lazybench.data.hub import reading
from lazybench.errors import LazyBenchError


def read(
    dataset: str, root: str | None, *, load: Mapping[str, Any], datasets: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `dataset` with LongBench's fields, in order.

    Only `context` and `answers`, a text or a list of texts, need a column. By default `_id` is the row's number,
    `length` the number of words in the context, `input` empty and `language` `en`.

    Args:
        dataset: one of `datasets`.
        root: the folder of the files, `data_dir` of `datasets.load_dataset`; None if `load` has their full paths.
        load: arguments of `datasets.load_dataset`.
        datasets: settings by dataset: its facts; `load`, more arguments; `columns`, the column of each of LongBench's
            fields that has another name; and `rows`, the value of a column in the rows to take, by column.

    Raises:
        LazyBenchError: `datasets` cannot load it, or it has no such column.
        OutOfReach: the hub cannot be reached, and its local cache lacks the dataset.
    """
    if not (arguments := {**load, **(datasets[dataset].get("load") or {})}):
        raise LazyBenchError(f"dataset {dataset!r}: give load, such as {{path: csv, data_files: {dataset}.csv}}")
    columns, wanted = datasets[dataset].get("columns", {}), datasets[dataset].get("rows", {})
    for number, row in enumerate(_rows(dataset, {"data_dir": root, **arguments})):
        if missing := [column for column in (*columns.values(), *wanted) if column not in row]:
            raise LazyBenchError(f"dataset {dataset!r}: there is no column {missing[0]} among {', '.join(row)}")
        if any(row[column] != value for column, value in wanted.items()):
            continue
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

    path, files = str(arguments.get("path")), str(arguments.get("data_files") or "")
    is_local = Path(path).exists() or ("/" not in path and "://" not in files)
    advice = "load has the arguments of datasets.load_dataset"
    if arguments.get("name") is not None:
        arguments["name"] = str(arguments["name"])  # YAML reads the name 4096 as a number
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
