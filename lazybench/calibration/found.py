"""What a calibration has found: schedules, and what they do on the records that they were not found on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lazybench.calibration.harm import Candidate
from lazybench.calibration.search import Trial
from lazybench.data.record import Record
from lazybench.report.bootstrap import Estimate, estimate

# How a schedule came about: found, or the reference scaled in one of two ways.
CALIBRATED, KEEPS, DEPTH = "calibrated", "reference, keeps scaled", "reference, depth scaled"


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


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row a half, speedup and kind; where there are two halves, further rows for both together.

    Returns:
        `half`, `speedup`, `kind`, `schedule`, `importance`, `found_kl`; `kl`, the mean over the `records` of the other
        half, in nats; `to_keeps` and `to_depth`, that mean over the scaled reference's on the same records; each with
        `_low` and `_high`, the 95% interval by a bootstrap over records.
    """
    halves = list(dict.fromkeys(result.half for result in results))
    rows = [_row(half, [result]) | _ratios([result], results) for half in halves for result in _of(results, half)]
    if len(halves) > 1:
        for key in dict.fromkeys((result.speedup, result.kind) for result in results):
            both = [result for result in results if (result.speedup, result.kind) == key]
            if len(both) == len(halves):
                rows.append(_row("cross", both) | _ratios(both, results))
    return pd.DataFrame(rows)


def _of(results: Sequence[Result], half: str) -> list[Result]:
    return [result for result in results if result.half == half]


def _row(half: str, members: Sequence[Result]) -> dict[str, object]:
    found = [result.found_kl for result in members]
    values = _together(members)
    return {
        "half": half,
        "speedup": members[0].speedup,
        "kind": members[0].kind,
        "schedule": " | ".join(result.candidate.schedule.spec for result in members),
        "importance": " | ".join(dict.fromkeys(str(result.candidate.importance) for result in members)),
        "found_kl": None if None in found else float(np.mean(found)),
        "records": len(values),
        **_columns("kl", estimate([(values[None], np.ones((1, len(values))))])),
    }


def _ratios(members: Sequence[Result], results: Sequence[Result]) -> dict[str, object]:
    """The members' KL over that of the reference at the same speedup on the same records."""
    columns: dict[str, object] = {}
    for name, kind in (("to_keeps", KEEPS), ("to_depth", DEPTH)):
        reference = [
            other
            for result in members
            for other in results
            if (other.half, other.speedup, other.kind) == (result.half, result.speedup, kind)
        ]
        ratio = None
        if len(reference) == len(members) and members[0].kind == CALIBRATED:
            ratio = estimate([(_together(members)[None], _together(reference)[None])])
        columns |= _columns(name, ratio)
    return columns


def _together(members: Sequence[Result]) -> np.ndarray:
    return np.concatenate([np.asarray(result.kl, dtype=float) for result in members])


def _columns(name: str, of: Estimate | None) -> dict[str, float | None]:
    values = (None, None, None) if of is None else (of.value, of.low, of.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
