"""What the tables measure, each as a ratio of sums over records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lazybench.report.bootstrap import Estimate, estimate
from lazybench.report.parts import Part


@dataclass(frozen=True)
class Measure:
    """A number of a method on a task.

    A dataset's value is the product of the sums of the columns in `top`, over that of the columns in `bottom`; a task's
    value is the mean over its datasets. Without a `bottom` a dataset's value is the mean over its records.

    Attributes:
        key: name of its columns in CSV files.
        title: heading, with the unit.
        top: columns of the numerator.
        bottom: columns of the denominator.
        scale: factor from what is stored to what is shown.
        digits: digits shown after the point.
        absent: why there is none where the columns are empty.
        by_seed: column with the values of several seeds, of which the value is the mean; empty without one.
    """

    key: str
    title: str
    top: tuple[str, ...]
    bottom: tuple[str, ...] = ()
    scale: float = 1.0
    digits: int = 2
    absent: str = "not timed"
    by_seed: str = ""


@dataclass(frozen=True)
class Cell:
    """A measured number, or why there is none.

    Attributes:
        estimate: the number and its interval; None where it is missing.
        records: number of records behind it.
        reason: why it is missing, empty where it is not.
        note: what it does not cover, empty where it covers everything that was run.
        seed_deviation: standard deviation over seeds, where there are several.
    """

    estimate: Estimate | None
    records: int = 0
    reason: str = ""
    note: str = ""
    seed_deviation: float | None = None


SCORE = Measure("score", "Score", ("score",), scale=100, by_seed="score_by_seed")
TTFT = Measure("ttft_speedup", "TTFT speedup (×)", ("baseline_ttft_s",), ("ttft_s",))
COMPUTED = Measure(
    "prompt_computed", "Prompt tokens computed (%)", ("prompt_computed",), scale=100, absent="not recorded"
)
GENERATION = Measure("generation_speedup", "Generation speedup (×)", ("baseline_generation_s",), ("generation_s",))
PER_TOKEN = Measure(
    "generation_speedup_per_token",
    "Generation speedup per generated token (×)",
    ("baseline_generation_s", "new_tokens"),
    ("generation_s", "baseline_new_tokens"),
    absent="not recorded",
)
KL = Measure("first_token_kl", "KL of first token (nats)", ("first_token_kl",), digits=4, absent="not traced")
TOKENS = Measure(
    "identical_tokens", "Identical tokens (%)", ("identical_tokens",), scale=100, digits=1, absent="not recorded"
)
ANSWERS = Measure(
    "identical_answers", "Identical answers (%)", ("identical_answer",), scale=100, digits=1, absent="not paired"
)


def measure(part: Part, of: Measure) -> Cell:
    """One measure over a row's records of one task; failed records are in none, the tables count them."""
    if part.reason:
        return Cell(None, reason=part.reason)
    needed = list(dict.fromkeys((*of.top, *of.bottom)))
    ran = [frame[frame["error"] == ""] for frame in part.datasets.values()]
    usable = [frame.dropna(subset=needed) for frame in ran]
    have, total = sum(map(len, usable)), sum(map(len, ran))
    if any(frame.empty for frame in usable):
        return Cell(None, have, of.absent if have == 0 else f"{of.absent}: {total - have} of {total}")
    found = estimate([_ratio(frame, of) for frame in usable])
    if found is None:
        return Cell(None, have, "not defined: a sum is zero")
    note = "" if have == total else f"{have} of {total} records"
    return Cell(found, have, note=note, seed_deviation=_seed_deviation(usable, of))


def _seed_deviation(datasets: list[pd.DataFrame], of: Measure) -> float | None:
    """Standard deviation over seeds of the mean over datasets; None unless all records have the same several seeds."""
    if not of.by_seed:
        return None
    seeds = [frame[of.by_seed].str.split(expand=True) for frame in datasets]
    if any(frame.shape[1] < 2 or frame.isna().to_numpy().any() for frame in seeds):
        return None
    if len({frame.shape[1] for frame in seeds}) > 1:
        return None
    return float(np.mean([frame.astype(float).mean() for frame in seeds], axis=0).std(ddof=1)) * of.scale


def _ratio(frame: pd.DataFrame, of: Measure) -> tuple[np.ndarray, np.ndarray]:
    top = frame[list(of.top)].to_numpy(float).T.copy()
    bottom = frame[list(of.bottom)].to_numpy(float).T if of.bottom else np.ones((1, len(frame)))
    top[0] *= of.scale
    return top, bottom
