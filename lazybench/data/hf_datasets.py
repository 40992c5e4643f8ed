"""Custom records, from any source that `datasets` loads: JSON, CSV, Parquet, a dataset of the hub."""

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lazybench.data.hub import explain_errors
from lazybench.data.record import parse
from lazybench.errors import LazyBenchError


def read(
    dataset: str, root: str | None, *, load: Mapping[str, Any], datasets: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `dataset` with LongBench's fields, in order.

    Only `context` and `answers`, a text or a list of texts, need a column. By default `input` is empty, and `_id` is
    the row's number. Values are texts, those of JSON and CSV as written in the file: `007`, `1e5`, `true`.

    Args:
        dataset: one of `datasets`.
        root: a JSON file to read; or the folder of the files, `data_dir` of `datasets.load_dataset`, or of a copy of
            the hub's dataset. None if `load` is enough.
        load: arguments of `datasets.load_dataset`.
        datasets: settings by dataset: its config; `load`, more arguments; `columns`, the column of each of LongBench's
            fields that has another name, or a template of columns such as `"{question} {hint}"`; and `rows`, the value
            of a column in the rows to take, by column.

    Raises:
        LazyBenchError: there is no `root`, `datasets` cannot load it, or it has no such column or rows.
        OutOfReach: the hub cannot be reached, and its local cache lacks the dataset.
    """
    if not (arguments := {**load, **(datasets[dataset].get("load") or {})}):
        raise LazyBenchError(f"dataset {dataset!r}: give load, such as {{path: csv, data_files: {dataset}.csv}}")
    if root is not None:
        arguments |= _local(Path(root).expanduser(), on_hub="/" in str(arguments.get("path")))
    columns, wanted = datasets[dataset].get("columns", {}), _texts(datasets[dataset].get("rows", {}))
    first, is_found = None, False
    for number, row in enumerate(map(_texts, _rows(dataset, arguments))):
        try:
            values = {column: row[column] for column in wanted}
            first = first or values
            if values != wanted:
                continue
            row |= {field: _field(row, column) for field, column in columns.items()}
        except KeyError as error:
            message = f"there is no column {error.args[0]} among {', '.join(row)}"
            raise LazyBenchError(f"dataset {dataset!r}: {message}") from error
        is_found = True
        row = {"_id": str(number), "input": "", **row, "dataset": dataset}
        length = str(row.pop("length", ""))
        row |= {"length": int(length)} if length.isdecimal() else {}
        if isinstance(row.get("answers"), str):
            row["answers"] = [row["answers"]]
        yield row
    if first and not is_found:
        raise LazyBenchError(f"dataset {dataset!r}: no row has {wanted}; the first one has {first}")


def _local(root: Path, on_hub: bool) -> dict[str, Any]:
    """Return the arguments of `datasets.load_dataset` for files on this machine, instead of a dataset of the hub."""
    if not root.exists():
        raise LazyBenchError(f"data.root={root}: no such file or folder")
    if root.is_file():
        return {"path": "json", "data_files": str(root)}
    return {"path": str(root)} if on_hub else {"data_dir": str(root)}


def _texts(value: Any) -> Any:
    """Return a value, and all values in a list or mapping, as texts; None stays."""
    if isinstance(value, Mapping):
        return {name: _texts(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(item) for item in value]
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _field(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column, or fill in a template of columns with their values, without white space around."""
    if "{" not in column:
        return row[column]
    stripped = {name: value.strip() if isinstance(value, str) else value or "" for name, value in row.items()}
    return column.format_map(stripped)


def _rows(dataset: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Load a dataset of one split, without the cache of `datasets`; files of the hub through the hub's own."""
    import datasets  # takes a second
    from datasets.packaged_modules.csv.csv import CsvConfig
    from datasets.packaged_modules.json.json import JsonConfig
    from huggingface_hub import constants, snapshot_download

    path, files = str(arguments.get("path")), str(arguments.get("data_files") or "")
    on_hub = "/" in path and not Path(path).exists()
    advice = "load has the arguments of datasets.load_dataset"
    if arguments.get("name") is not None:
        arguments["name"] = str(arguments["name"])  # YAML reads the name 4096 as a number
    is_local = not on_hub and "://" not in files
    with (
        TemporaryDirectory() as folder,
        explain_errors(f"dataset {dataset!r}: {files or path}", advice, is_local) as offline,
    ):
        if offline:  # else each request would wait, and be repeated
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)  # it logs what it raises, too
        if on_hub:
            given = arguments.get("data_files")
            arguments["path"] = snapshot_download(
                path,
                repo_type="dataset",
                revision=arguments.pop("revision", None),
                allow_patterns=given if isinstance(given, str | list) else None,
                local_files_only=offline,
            )
        split = arguments.pop("split", None)
        builder = datasets.load_dataset_builder(**arguments, cache_dir=folder)
        # `datasets` guesses types from CSV and JSON: a zip code loses its zero, and a text may become a date.
        if isinstance(builder.config, CsvConfig | JsonConfig):
            read_file = _csv_rows if isinstance(builder.config, CsvConfig) else _json_rows
            splits = {
                name: chain.from_iterable(read_file(str(file), builder.config) for file in paths)
                for name, paths in builder.config.data_files.items()
            }
        else:
            splits = builder.as_streaming_dataset()
        name = next(iter(splits)) if split is None and len(splits) == 1 else str(split)
        if name not in splits:
            raise LazyBenchError(f"dataset {dataset!r}: load.split is one of {', '.join(map(str, splits))}")
        yield from splits[name]


def _csv_rows(file: str, config: Any) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file, read by the options of `config`, a config of `datasets`."""
    import pandas as pd

    options = config.pd_read_csv_kwargs | {"dtype": object, "na_filter": False}
    with pd.read_csv(file, **options) as chunks:
        for rows in chunks:
            if config.index_col is None and not isinstance(rows.index, pd.RangeIndex):  # the first cell is its index
                raise LazyBenchError(f"{file}: the rows have more cells than the first line has names")
            yield from rows.to_dict("records")


def _json_rows(file: str, config: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON Lines, of a JSON list, or of the list in one field of an object, numbers as texts."""
    import fsspec

    decode = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str).decode
    encoding = "utf-8-sig" if config.encoding == "utf-8" else config.encoding
    options = {"encoding": encoding, "errors": config.encoding_errors, "newline": "\n", "compression": "infer"}
    with fsspec.open(file, "rt", **options) as opened:
        first = opened.readline()
        if config.field is None and not first.startswith("["):
            yield from (row for _, row in parse((line.encode() for line in chain([first], opened)), file, decode))
            return
        rows = decode((first + opened.read()).strip())
    for row in rows if config.field is None else rows[config.field]:
        if not isinstance(row, dict):
            raise LazyBenchError(f"{file}: each row must be a JSON object, not {row!r:.60}")
        yield row
