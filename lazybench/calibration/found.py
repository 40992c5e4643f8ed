"""What a calibration has found: schedules, and what they do on the records that they were not found on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lazybench.calibration.harm import Candidate
from lazybench.calibration.search import Trial
from lazybench.data.record import Record
from lazybench.report.intervals import Estimate, estimate

# How a schedule came about: found, or the reference scaled in one of two ways.
CALIBRATED, KEEPS, DEPTH = "calibrated", "reference, keeps scaled", "reference, depth scaled"
# Columns that say how many times less harm than the reference a found schedule does.
REDUCTIONS = {"harm_reduction_to_keeps": KEEPS, "harm_reduction_to_depth": DEPTH}
_RECORD = ("half", "dataset", "_id")


@dataclass(frozen=True)
class Result:
    """One schedule, and its harm on records of the other half.

    Attributes:
        half: the half it was found on, or for.
        kind: how it came about.
        speedup: the ideal speedup it was made for.
        candidate: the schedule and its importance.
        found_kl: mean KL on the half it was found on, in nats; None for the reference.
        records: the records of the other half.
        kl: their KL, in nats.
    """

    half: str
    kind: str
    speedup: float
    candidate: Candidate
    found_kl: float | None
    records: Sequence[Record]
    kl: Sequence[float]


def calibrated(results: Sequence[Result], trials: Sequence[Trial]) -> list[Result]:
    """What the winners of the searches do on the other half: one a half, in the same order."""
    halves = dict.fromkeys(result.half for result in results)
    return [
        next(
            result
            for result in results
            if (result.half, result.kind, result.candidate) == (half, CALIBRATED, trial.candidate)
        )
        for half, trial in zip(halves, trials, strict=True)
    ]


def records(results: Sequence[Result]) -> pd.DataFrame:
    """One row a schedule and record, from which `table` makes the frontier.

    Returns:
        `half`, `speedup`, `kind`, `schedule`, `importance`, `found_kl`, and `dataset`, `_id` and `kl` (nats) of a
        record of the other half.
    """
    return pd.DataFrame(
        {
            "half": result.half,
            "speedup": result.speedup,
            "kind": result.kind,
            "schedule": result.candidate.schedule.spec,
            "importance": str(result.candidate.importance),
            "found_kl": result.found_kl,
            "dataset": record.dataset,
            "_id": record.id,
            "kl": kl,
        }
        for result in results
        for record, kl in zip(result.records, result.kl, strict=True)
    )


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a half, speedup and kind; where there are two halves, further rows for both together.

    Args:
        rows: what `records` gives.

    Returns:
        `half`, `speedup`, `kind`, `schedule`, `importance`, `found_kl`; `kl`, the mean over the `records` of the other
        half, in nats; `harm_reduction_to_keeps` and `harm_reduction_to_depth`, how many times as large the scaled
        reference's mean is on the same records: above 1 the found schedule does less harm. These three each with
        `_low` and `_high`, their 95% interval over records, empty where there are too few.
    """
    halves = list(rows["half"].unique())
    parts = [(half, part) for half in halves for part in _parts(rows[rows["half"] == half])]
    if len(halves) > 1:
        parts += [("cross", part) for part in _parts(rows) if part["half"].nunique() == len(halves)]
    return pd.DataFrame([_row(half, part) | _reductions(part, rows) for half, part in parts])


def _parts(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each speedup and kind, in the order in which they come."""
    return [part for _, part in rows.groupby(["speedup", "kind"], sort=False)]


def _row(half: str, part: pd.DataFrame) -> dict[str, object]:
    schedules = part.drop_duplicates("half")
    found = schedules["found_kl"]
    values = part["kl"].to_numpy()[None]
    return {
        "half": half,
        "speedup": part["speedup"].iloc[0],
        "kind": part["kind"].iloc[0],
        "schedule": " | ".join(schedules["schedule"]),
        "importance": " | ".join(schedules["importance"].unique()),
        "found_kl": None if found.isna().any() else float(found.mean()),
        "records": len(part),
        **_columns("kl", estimate([(values, np.ones_like(values))], long_tailed=True, limits=(0, np.inf))),
    }


def _reductions(part: pd.DataFrame, rows: pd.DataFrame) -> dict[str, object]:
    """The KL of the reference at the same speedup over that of a found schedule, on the same records."""
    columns: dict[str, object] = {}
    own = part.set_index(list(_RECORD))["kl"]
    for name, kind in REDUCTIONS.items():
        reference = rows[(rows["speedup"] == part["speedup"].iloc[0]) & (rows["kind"] == kind)]
        paired = reference.set_index(list(_RECORD))["kl"].reindex(own.index)
        reduction = None
        if part["kind"].iloc[0] == CALIBRATED and paired.notna().all():
            pairs = [(paired.to_numpy()[None], own.to_numpy()[None])]
            reduction = estimate(pairs, long_tailed=True, limits=(0, np.inf))
        columns |= _columns(name, reduction)
    return columns


def _columns(name: str, of: Estimate | None) -> dict[str, float | None]:
    values = (None, None, None) if of is None else (of.value, of.low, of.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
