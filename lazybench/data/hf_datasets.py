"""Custom records, from whatever `datasets` loads: JSON, CSV, Parquet, a dataset of the hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lazybench.data.hub import explain_errors
from lazybench.errors import LazyBenchError


def read(
    dataset: str, root: str | None, *, load: Mapping[str, Any], datasets: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `dataset` with LongBench's fields, in order.

    Only `context` and `answers`, a text or a list of texts, need a column. By default `_id` is the row's number,
    `input` empty and `language` `en`. Without a number in it, `length` is the number of words in the context.

    Args:
        dataset: one of `datasets`.
        root: a JSON file to read; or the folder of the files, `data_dir` of `datasets.load_dataset`, or of a copy of
            the hub's dataset. None if `load` says it all.
        load: arguments of `datasets.load_dataset`.
        datasets: settings by dataset: its facts; `load`, more arguments; `columns`, the column of each of LongBench's
            fields that has another name, or a template of columns such as `"{question} {hint}"`; and `rows`, the value
            of a column in the rows to take, by column.

    Raises:
        LazyBenchError: there is no `root`, `datasets` cannot load it, or it has no such column.
        OutOfReach: the hub cannot be reached, and its local cache lacks the dataset.
    """
    if not (arguments := {**load, **(datasets[dataset].get("load") or {})}):
        raise LazyBenchError(f"dataset {dataset!r}: give load, such as {{path: csv, data_files: {dataset}.csv}}")
    if root is not None:
        arguments |= _local(Path(root).expanduser(), on_hub="/" in str(arguments.get("path")))
    columns, wanted = datasets[dataset].get("columns", {}), datasets[dataset].get("rows", {})
    for number, row in enumerate(_rows(dataset, arguments)):
        try:
            if any(row[column] != value for column, value in wanted.items()):
                continue
            row |= {field: _field(row, column) for field, column in columns.items()}
        except KeyError as error:
            message = f"there is no column {error.args[0]} among {', '.join(row)}"
            raise LazyBenchError(f"dataset {dataset!r}: {message}") from error
        row = {"_id": number, "input": "", "language": "en", **row, "dataset": dataset}
        row["_id"] = str(row["_id"])
        if not isinstance(row.get("length"), int):
            row["length"] = len(str(row.get("context")).split())
        if isinstance(row.get("answers"), str | int):
            row["answers"] = [str(row["answers"])]
        yield row


def _local(root: Path, on_hub: bool) -> dict[str, Any]:
    """Return the arguments of `datasets.load_dataset` for files on this machine, instead of a dataset of the hub."""
    if not root.exists():
        raise LazyBenchError(f"data.root={root}: no such file or folder")
    if root.is_file():
        return {"path": "json", "data_files": str(root)}
    return {"path": str(root)} if on_hub else {"data_dir": str(root)}


def _field(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column, or fill in a template of columns with their values, without white space around."""
    if "{" not in column:
        return row[column]
    return column.format_map({name: str(value).strip() for name, value in row.items()})


def _rows(dataset: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Load a dataset of one split: local files without a cache, a dataset of the hub through its local cache."""
    import datasets  # takes a second
    from huggingface_hub import constants

    path, files = str(arguments.get("path")), str(arguments.get("data_files") or "")
    is_local = Path(path).exists() or ("/" not in path and "://" not in files)
    advice = "load has the arguments of datasets.load_dataset"
    if arguments.get("name") is not None:
        arguments["name"] = str(arguments["name"])  # YAML reads the name 4096 as a number
    with (
        TemporaryDirectory() as folder,
        explain_errors(f"dataset {dataset!r}: {files or path}", advice, is_local) as offline,
    ):
        if offline:  # else each request would wait, and be repeated
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)  # it logs what it raises, too
        loaded = datasets.load_dataset(**arguments, streaming=is_local, cache_dir=folder if is_local else None)
        if isinstance(loaded, Mapping):
            if len(loaded) > 1:
                raise LazyBenchError(f"dataset {dataset!r}: load.split is one of {', '.join(map(str, loaded))}")
            (loaded,) = loaded.values()
        yield from loaded
