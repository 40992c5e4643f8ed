"""The frontier: the harm of what was found, and of the scaled reference, against speed."""

from __future__ import annotations

import math

import pandas as pd

from lazybench.analysis.averages import Measure, average
from lazybench.calibration.folder import Folder

# How a schedule was made: found by a search, or the reference scaled in one of two ways; or another method's.
CALIBRATED, KEEPS, DEPTH = "calibrated", "reference, keeps scaled", "reference, depth scaled"
STATIC = "static pruning, keep scaled"
# Columns that say how many times less harm than the reference a found schedule does.
_REDUCTIONS = {"harm_reduction_to_keeps": KEEPS, "harm_reduction_to_depth": DEPTH}
_MEASURES = [Measure("kl", "KL (nats)", "kl", long_tailed=True)]
_MEASURES += [
    Measure(name, f"less harm than {kind} (x)", name, "kl", long_tailed=True) for name, kind in _REDUCTIONS.items()
]
_PAIR = ["half", "speedup", "dataset", "_id"]


def write(folder: Folder, rows: pd.DataFrame, tried: pd.DataFrame) -> pd.DataFrame:
    """Write what `Study` gives as `held_out` and `tried`, and their frontier; returns the frontier."""
    frontier = table(folder.write_records("kl", rows))
    folder.write_table("frontier", frontier)
    folder.write_table("tried", tried)
    return frontier


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a half, speedup and kind; where there are two halves, further rows for both together.

    Args:
        rows: what `Study.held_out` gives, of one half or of both.

    Returns:
        `half`, `speedup`, `kind`, `schedule`, `importance`, `found_kl`; `speedup_with_revivals`, the ideal one of whole
        generations on the other half's records with what is revived there; `kl`, the mean over these `records`, in
        nats; `harm_reduction_to_keeps` and `harm_reduction_to_depth`, how many times as large the scaled reference's
        mean is on the same records: above 1 the found schedule does less harm. These three each with `_low` and
        `_high`, their 95% interval over records, empty where there are too few.
    """
    for name, kind in _REDUCTIONS.items():
        rows = rows.join(rows[rows["kind"] == kind].set_index(_PAIR)["kl"].rename(name), on=_PAIR)
    rows.loc[rows["kind"] != CALIBRATED, list(_REDUCTIONS)] = math.nan
    halves = list(rows["half"].unique())
    parts = [(half, part) for half in halves for part in _parts(rows[rows["half"] == half])]
    if len(halves) > 1:
        parts += [("cross", part) for part in _parts(rows) if part["half"].nunique() == len(halves)]
    return pd.DataFrame([_row(half, part) for half, part in parts])


def _parts(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each speedup and kind, in the order in which they come."""
    return [part for _, part in rows.groupby(["speedup", "kind"], sort=False)]


def _row(half: str, part: pd.DataFrame) -> dict[str, object]:
    schedules = part.drop_duplicates("half")
    found = schedules["found_kl"]
    row = {
        "half": half,
        "speedup": part["speedup"].iloc[0],
        "kind": part["kind"].iloc[0],
        "schedule": " | ".join(schedules["schedule"]),
        "importance": " | ".join(schedules["importance"].unique()),
        "found_kl": None if found.isna().any() else float(found.mean()),
        # Empty where it was not measured.
        "speedup_with_revivals": part["unmodified_s"].sum(min_count=1) / part["pruned_s"].sum(min_count=1),
        "records": len(part),
    }
    for measure in _MEASURES:
        of = average([[part]], measure)
        values = (None, None, None) if of is None else (of.value, of.low, of.high)
        row |= zip((measure.key, f"{measure.key}_low", f"{measure.key}_high"), values, strict=True)
    return row
