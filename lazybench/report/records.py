"""The compact form of a run: a CSV of numbers and a JSON of everything else, small enough to commit."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from lazybench.errors import LazyBenchError
from lazybench.report.run_data import COLUMNS, COUNTS, NUMBERS, TEXTS, Run, table

_MARK = "lazybench records"
FORMAT = f"{_MARK} 2"
_KEYS = {"dataset", "_id", "score", "error"}


def write(runs: list[Run], folder: Path) -> None:
    """Write `<model>/<data>/<method>/<hash>.csv` and `.json` for each run."""
    for run in runs:
        path = folder / run.name
        path.parent.mkdir(parents=True, exist_ok=True)
        run.records.astype(dict.fromkeys(COUNTS, "Int64")).to_csv(f"{path}.csv", index=False, lineterminator="\n")
        about = {
            "format": FORMAT,
            "run": {"model": run.model, "data": run.data, "method": run.method, "digest": run.digest},
            "finished": run.finished,
            "settings": run.settings,
            "environment": run.environment,
            "traces": run.traces,
        }
        Path(f"{path}.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def is_record_file(path: Path) -> bool:
    """Whether a `.json` file is one that `write` wrote."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return _MARK in file.read(len(_MARK) + 40)


def read(path: Path) -> Run:
    """The run whose `.json` file this is.

    Raises:
        LazyBenchError: the pair of files cannot be read or does not fit.
    """
    rows = path.with_suffix(".csv")
    try:
        about = json.loads(path.read_text("utf-8"))
        frame = pd.read_csv(
            rows,
            dtype=dict.fromkeys(TEXTS, str) | dict.fromkeys(NUMBERS, float),
            keep_default_na=False,
            na_values={key: [""] for key in NUMBERS},
        )
        if not _KEYS <= set(frame.columns) <= set(COLUMNS):
            raise LazyBenchError(f"{rows}: the columns must be of {','.join(COLUMNS)}")
        frame = frame.reindex(columns=list(COLUMNS))  # earlier formats have fewer
        frame[list(TEXTS)] = frame[list(TEXTS)].fillna("")
        return Run(
            **about["run"],
            settings=about["settings"],
            environment=about["environment"],
            finished=about["finished"],
            records=table(frame.to_dict("records")),
            traces=about["traces"],
        )
    except OSError as error:
        raise LazyBenchError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise LazyBenchError(f"{path} and its .csv are damaged ({error}): write them again from the runs") from error
