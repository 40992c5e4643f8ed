"""What the tables measure, each as a mean or as a ratio of means over records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lazybench.report.intervals import Estimate, estimate
from lazybench.report.parts import Part


@dataclass(frozen=True)
class Measure:
    """A number of a method on a task.

    A dataset's value is the mean of the column `top` over that of `bottom`, or the mean of `top` alone without a
    `bottom`; a task's value is the mean over its datasets.

    Attributes:
        key: name of its columns in CSV files.
        title: heading, with the unit.
        top: column of the numerator.
        bottom: column of the denominator.
        scale: factor from what is stored to what is shown.
        digits: digits shown after the point.
        absent: why there is none where the columns are empty.
        by_seed: column with the values of several seeds, of which the value is the mean; empty without one.
        timed: whether it is made of times, which leaves out records whose passes were disturbed.
        long_tailed: whether a few records may have most of the sum: an interval then needs more records.
        most: the largest value there can be, as shown; no interval goes beyond it, or below 0.
    """

    key: str
    title: str
    top: str
    bottom: str = ""
    scale: float = 1.0
    digits: int = 2
    absent: str = "not timed"
    by_seed: str = ""
    timed: bool = False
    long_tailed: bool = False
    most: float = math.inf


@dataclass(frozen=True)
class Cell:
    """A measured number, or why there is none.

    Attributes:
        estimate: the number and its interval; None where it is missing.
        records: number of records behind it.
        reason: why it is missing, empty where it is not.
        note: what it does not cover or show, empty where there is nothing to be said.
        seed_deviation: standard deviation over seeds, where there are several.
    """

    estimate: Estimate | None
    records: int = 0
    reason: str = ""
    note: str = ""
    seed_deviation: float | None = None


def _speedup(what: str, title: str) -> tuple[Measure, Measure]:
    """A speedup over the unmodified model, and over the method's own engine with nothing pruned."""
    return (
        Measure(f"{what}_speedup", f"{title} speedup (×)", f"baseline_{what}_s", f"{what}_s", timed=True),
        Measure(
            f"{what}_speedup_over_keep_1",
            f"{title} speedup over keep = 1 (×)",
            f"keep_1_{what}_s",
            f"{what}_s",
            absent="not on the engine",
            timed=True,
        ),
    )


SCORE = Measure("score", "Score", "score", scale=100, by_seed="score_by_seed", most=100)
TTFT, TTFT_OVER_KEEP_1 = _speedup("ttft", "TTFT")
GENERATION, GENERATION_OVER_KEEP_1 = _speedup("generation", "Generation")
DECODE_STEP, DECODE_STEP_OVER_KEEP_1 = _speedup("decode_step", "Decode step")
COMPUTED = Measure("prompt_computed", "Prompt tokens computed (%)", "prompt_computed", scale=100, absent="not recorded")
KL = Measure(
    "first_token_kl", "KL of first token (nats)", "first_token_kl", digits=4, absent="not traced", long_tailed=True
)
TOKENS = Measure(
    "identical_tokens", "Identical tokens (%)", "identical_tokens", scale=100, digits=1, absent="not recorded", most=100
)
ANSWERS = Measure(
    "identical_answers", "Identical answers (%)", "identical_answer", scale=100, digits=1, absent="not paired", most=100
)


def measure(part: Part, of: Measure) -> Cell:
    """One measure over a row's records of one task; failed records are in none, the tables count them."""
    return mean_of_tasks({"": part}, of)


def mean_of_tasks(parts: Mapping[str, Part], of: Measure) -> Cell:
    """One measure as the mean over several tasks of a row, each the mean over its datasets."""
    missing = {task: part.reason for task, part in parts.items() if part.reason}
    if missing:
        reason = next(iter(missing.values()))
        return Cell(None, reason=reason if len(parts) == 1 else f"{reason}: {', '.join(missing)}")
    ran = [[frame[frame["error"] == ""] for frame in part.datasets.values()] for part in parts.values()]
    usable = [[_usable(frame, of) for frame in frames] for frames in ran]
    have, total = (sum(len(frame) for frames in group for frame in frames) for group in (usable, ran))
    if any(frame.empty for frames in usable for frame in frames):
        disturbed = of.timed and all(_undisturbed(frame).empty for frames in ran for frame in frames)
        absent = "disturbed" if disturbed else of.absent
        return Cell(None, have, absent if have == 0 else f"{absent}: {total - have} of {total}")
    weights = [1 / len(usable) / len(frames) for frames in usable for _ in frames]
    records = [_ratio(frame, of) for frames in usable for frame in frames]
    found = estimate(records, weights, long_tailed=of.long_tailed, limits=(0, of.most))
    if found is None:
        return Cell(None, have, "not defined: a sum is zero")
    note = "" if have == total else f"{have} of {total} records"
    return Cell(found, have, note=note, seed_deviation=_seed_deviation(usable, of))


def _usable(frame: pd.DataFrame, of: Measure) -> pd.DataFrame:
    """The records that have the measure's numbers."""
    return (_undisturbed(frame) if of.timed else frame).dropna(subset=[of.top, *([of.bottom] if of.bottom else [])])


def _undisturbed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["disturbed"] != 1]


def _seed_deviation(tasks: list[list[pd.DataFrame]], of: Measure) -> float | None:
    """Standard deviation over seeds of the mean over tasks; None unless all records have the same several seeds."""
    if not of.by_seed:
        return None
    seeds = [[frame[of.by_seed].str.split(expand=True) for frame in frames] for frames in tasks]
    every = [frame for frames in seeds for frame in frames]
    if any(frame.shape[1] < 2 or frame.isna().to_numpy().any() for frame in every):
        return None
    if len({frame.shape[1] for frame in every}) > 1:
        return None
    by_task = [np.mean([frame.astype(float).mean() for frame in frames], axis=0) for frames in seeds]
    return float(np.mean(by_task, axis=0).std(ddof=1)) * of.scale


def _ratio(frame: pd.DataFrame, of: Measure) -> tuple[np.ndarray, np.ndarray]:
    top = frame[[of.top]].to_numpy(float).T * of.scale
    return top, frame[[of.bottom]].to_numpy(float).T if of.bottom else np.ones((1, len(frame)))
