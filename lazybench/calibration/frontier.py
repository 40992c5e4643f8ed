"""The frontier: the harm of what was found, and of what one would pick instead, against speed."""

import math

import pandas as pd

from lazybench.analysis.averages import Measure, average
from lazybench.analysis.intervals import columns

# How a schedule was made: found by a search, or the reference scaled; or another method's.
CALIBRATED, KEEPS, STATIC = "calibrated", "reference, keeps scaled", "static pruning, keep scaled"
_REDUCTION = "harm_reduction_to_keeps"
_MEASURES = (
    Measure("kl", "KL (nats)", "kl", long_tailed=True),
    Measure(_REDUCTION, f"less harm than {KEEPS} (x)", _REDUCTION, "kl", long_tailed=True),
)
_PAIR = ["half", "speedup", "dataset", "_id"]


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a half, speedup and kind of what `Study.held_out` gives; of two halves, further rows for both together.

    Returns:
        `half`, `speedup`, `kind`, `schedule`, `importance`, `found_kl`; `speedup_with_revivals`, the ideal one of whole
        generations on the other half's records; `kl`, the mean over these `records`, in nats;
        `harm_reduction_to_keeps`, how many times as large the scaled reference's mean is on the same records. The last
        two with `_low` and `_high`, their 95% interval over records, empty where there are too few.
    """
    rows = rows.join(rows[rows["kind"] == KEEPS].set_index(_PAIR)["kl"].rename(_REDUCTION), on=_PAIR)
    rows.loc[rows["kind"] != CALIBRATED, _REDUCTION] = math.nan
    halves, by = list(rows["half"].unique()), ["speedup", "kind"]
    parts = [(half, part) for half in halves for _, part in rows[rows["half"] == half].groupby(by, sort=False)]
    if len(halves) > 1:
        both = [part for _, part in rows.groupby(by, sort=False) if part["half"].nunique() == len(halves)]
        parts += [("cross", part) for part in both]
    return pd.DataFrame([_row(half, part) for half, part in parts])


def _row(half: str, part: pd.DataFrame) -> dict[str, object]:
    schedules = part.drop_duplicates("half")
    row: dict[str, object] = {
        "half": half,
        "speedup": part["speedup"].iloc[0],
        "kind": part["kind"].iloc[0],
        "schedule": " | ".join(schedules["schedule"]),
        "importance": " | ".join(schedules["importance"].unique()),
        "found_kl": schedules["found_kl"].mean(skipna=False),
        # Empty where it was not measured.
        "speedup_with_revivals": part["unmodified_s"].sum(min_count=1) / part["pruned_s"].sum(min_count=1),
        "records": len(part),
    }
    for measure in _MEASURES:
        row |= columns(measure.key, average([[part]], measure))
    return row


def of_all(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table for both halves together, where there are such."""
    together = table[table["half"] == "cross"]
    return table if together.empty else together


def beaten(table: pd.DataFrame) -> list[str]:
    """A line for each speedup at which static pruning did less harm than what was found."""
    lines = []
    for speedup, part in of_all(table).groupby("speedup"):
        kl = part.set_index("kind")["kl"]
        if STATIC in kl and kl[STATIC] < kl[CALIBRATED]:
            lines.append(
                f"static pruning did less harm at {speedup:g}x: KL {kl[STATIC]:.3f} against {kl[CALIBRATED]:.3f} of "
                "what was found; search longer, or take it (method=static_pruning)"
            )
    return lines


def loss(rows: pd.DataFrame) -> float:
    """How much lower the mean over datasets of `Study.answers` is, in percent of the unmodified model's; NaN of 0."""
    means = rows.groupby("dataset")[["unmodified", "calibrated"]].mean().mean()
    return math.nan if means["unmodified"] == 0 else float(100 * (1 - means["calibrated"] / means["unmodified"]))
