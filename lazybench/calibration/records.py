"""A calibration's per-record files: what its tables are made from, and can be made from again."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lazybench.store.run_folder import replace

KL = "records_kl"
_TEXTS = ("half", "kind", "schedule", "importance", "task", "dataset", "_id")


def scores_of(method: str) -> str:
    """Stem of the file with a method's scores."""
    return f"records_scores_{method}"


def keep(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Write rows with six significant digits.

    Returns:
        the rows as the file has them, so that what is made from them now and later is the same.

    Raises:
        LazyBenchError: the file cannot be written.
    """
    replace(path, text(rows, digits=6))
    return read(path)


def read(path: Path) -> pd.DataFrame:
    """The rows of a file that `keep` wrote."""
    columns = pd.read_csv(path, nrows=0).columns
    numbers = [column for column in columns if column not in _TEXTS]
    return pd.read_csv(
        path,
        dtype={column: str if column in _TEXTS else float for column in columns},
        keep_default_na=False,
        na_values={column: [""] for column in numbers},
    )


def text(rows: pd.DataFrame, digits: int = 5) -> str:
    """Rows as CSV."""
    return rows.to_csv(index=False, float_format=f"%.{digits}g", lineterminator="\n")
