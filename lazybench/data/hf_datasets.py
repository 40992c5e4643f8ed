"""Records of the user's own, from whatever `datasets` loads: JSON, CSV, Parquet, a dataset of the hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lazybench.data.hub import OutOfReach, unreachable
from lazybench.errors import LazyBenchError, first_line


def read(dataset: str, root: str | None, *, datasets: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `dataset` with LongBench's fields, in order.

    Only `context` and `answers`, a text or a list of texts, need a column. `_id` is else the row's number, `length` the
    number of words in the context, `input` empty and `language` `en`.

    Args:
        dataset: one of `datasets`.
        root: the folder of the files, `data_dir` of `datasets.load_dataset`; None for paths of their own.
        datasets: by dataset, beside its facts, `load`, the arguments of `datasets.load_dataset`; and `columns`, the
            column of each of LongBench's fields that has another name.

    Raises:
        LazyBenchError: `datasets` cannot load it, or it has no such column.
        OutOfReach: the same, where the hub cannot be reached.
    """
    if dataset not in datasets or not isinstance(arguments := datasets[dataset].get("load"), Mapping):
        raise LazyBenchError(f"dataset {dataset!r}: give load, such as {{path: csv, data_files: {dataset}.csv}}")
    columns = datasets[dataset].get("columns", {})
    for number, row in enumerate(_rows(dataset, {"data_dir": root, **arguments})):
        if missing := ", ".join(column for column in columns.values() if column not in row):
            raise LazyBenchError(f"dataset {dataset!r}: there is no column {missing} among {', '.join(row)}")
        row |= {field: row[column] for field, column in columns.items()}
        row = {"_id": number, "input": "", "language": "en", "all_classes": None, **row, "dataset": dataset}
        row["_id"] = str(row["_id"])
        if isinstance(row.get("answers"), str | int):
            row["answers"] = [str(row["answers"])]
        yield {"length": len(str(row.get("context")).split()), **row}


def _rows(dataset: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Load a dataset of one split: local files past any cache, a dataset of the hub by way of its local cache."""
    import datasets  # takes a second
    from huggingface_hub import constants

    path, files = str(arguments.get("path")), str(arguments.get("data_files", ""))
    is_local = Path(path).exists() or ("/" not in path and "://" not in files)
    offline = None if is_local else unreachable()
    if offline:  # else each request would wait, and be repeated
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        with TemporaryDirectory() as folder:
            datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)  # it logs what it raises, too
            loaded = datasets.load_dataset(**arguments, streaming=is_local, cache_dir=folder if is_local else None)
            if isinstance(loaded, Mapping):
                if len(loaded) > 1:
                    raise LazyBenchError(f"dataset {dataset!r}: load.split is one of {', '.join(map(str, loaded))}")
                (loaded,) = loaded.values()
            yield from loaded
    except LazyBenchError:
        raise
    except Exception as error:  # of any reader
        reason = f"{offline}, and the local cache lacks it" if offline else first_line(error)
        kind = OutOfReach if offline else LazyBenchError
        raise kind(f"dataset {dataset!r}: datasets.load_dataset cannot read {files or path}: {reason}") from error
