"""Measures and their averages over records, for tables, figures and a run's summary.

A dataset's value is a mean over its records, or a ratio of two means. A task's value is the mean over its datasets, and
the mean of the tasks is the mean over tasks. Failed records are never included, and disturbed ones are not included in
times. A record without the measure's numbers is left out. A task has no value if one of its datasets has no record
left. A dataset that was not timed is skipped instead, with a note.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lazybench.analysis.intervals import Estimate, estimate, geometric_mean
from lazybench.data.longbench_e import LENGTHS

# The key of the mean of a run's tasks in its scores and in tables.
MEAN = "mean_of_tasks"
Column = str | Callable[[pd.DataFrame], pd.Series]


@dataclass(frozen=True)
class Measure:
    """The mean of column `top` over the mean of column `bottom`; a function computes a column from the records."""

    key: str  # prefix of its columns in CSV files
    title: str  # heading, with the unit
    top: Column
    bottom: Column | None = None  # None for a mean
    scale: float = 1.0  # factor from the stored value to the value in tables
    digits: int = 2  # decimals in tables
    absent: str = "not timed"  # why it is missing if its columns are empty
    by_seed: str = ""  # column with one value a seed
    timed: bool = False  # whether it is computed from times: disturbed records are not included
    with_times: bool = False  # whether untimed records may lack it, though it is not computed from times
    long_tailed: bool = False  # whether a few records may have most of the sum: there is no interval then
    least: float = 0.0  # smallest possible value, in the unit of tables
    most: float = math.inf  # largest possible value
    geometric: bool = False  # the geometric mean of `top` over all records together


def _speedups(key: str, title: str, time: str) -> tuple[Measure, Measure]:
    """Return the speedups over the unmodified model, and over the method's own engine with nothing pruned."""
    over_baseline = Measure(key, f"{title} (×)", f"baseline_{time}", time, timed=True)
    over_keep_1 = Measure(f"{key}_over_keep_1", f"{title} over keep = 1 (×)", f"keep_1_{time}", time, timed=True)
    return over_baseline, replace(over_keep_1, absent="not timed with nothing pruned")


def _equal_length_s(records: pd.DataFrame) -> pd.Series:
    """Return the seconds that the method would take for as many tokens as the baseline's answer has."""
    steps = records["baseline_new_tokens"] - 1
    # An answer of one token has no decode step.
    return records["ttft_s"] + steps * records["decode_step_s"].where(steps > 0, 0)


def scores_in(group: str, records: pd.DataFrame) -> pd.Series:
    """Return the scores of the records in a group of `DatasetFacts.groups`, missing for the others."""
    if group in LENGTHS:
        is_in = records["length"].between(*LENGTHS[group], inclusive="left")
    else:
        is_in = (" " + records["groups"] + " ").str.contains(f" {group} ", regex=False)
    return records["score"].where(is_in)


def group_measure(group: str) -> Measure:
    """Return the measure of the score of the records in a group."""
    names = {"key": f"score_in_{group}", "title": f"Score, {group}", "absent": "not in this group"}
    return replace(SCORE, top=partial(scores_in, group), **names)


SCORE = Measure("score", "Score", "score", scale=100, by_seed="score_by_seed", most=100)
BASELINE_SCORE = Measure(
    "baseline_score", "Baseline's score", "baseline_score", scale=100, absent="not paired", most=100
)
_POINTS: dict[str, Any] = {"scale": 100, "absent": "no baseline", "least": -100, "most": 100}
SCORE_DIFFERENCE = Measure("score_difference", "Score less the baseline's", "score_difference", **_POINTS)
TTFT = _speedups("ttft_speedup", "TTFT speedup", "ttft_s")
GENERATION = _speedups("generation_speedup", "Generation speedup", "generation_s")
_EQUAL = {"key": "generation_speedup_equal_length", "title": "Generation speedup at equal length (×)"}
EQUAL_LENGTH = replace(GENERATION[0], bottom=_equal_length_s, **_EQUAL)
DECODE_STEP = _speedups("decode_step_speedup", "Decode step speedup", "decode_step_s")
TTFT_SECONDS = Measure("ttft_s", "Mean TTFT (s)", "ttft_s", digits=3, timed=True)
_PERCENT: dict[str, Any] = {"scale": 100, "absent": "not recorded"}
COMPUTED = Measure("prompt_computed", "Prompt tokens computed (%)", "prompt_computed", **_PERCENT)
KL = Measure("kl", "KL of next token (nats)", "kl", digits=4, absent="not traced", long_tailed=True)
GEOMETRIC_KL = replace(KL, key="geometric_kl", title="KL, geometric mean (nats)", geometric=True)
_SAME = _PERCENT | {"digits": 1, "most": 100, "with_times": True}
TOKENS = Measure("identical_tokens", "Identical tokens (%)", "identical_tokens", **_SAME)
_SAME["absent"] = "not paired"
ANSWERS = Measure("identical_answers", "Identical answers (%)", "identical_answer", **_SAME)


def drop_failed(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records that did not fail."""
    return records[records["error"] == ""]


def drop_disturbed(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records whose passes no other work on the machine disturbed."""
    return records[records["disturbed"] != 1]


def average(records: pd.DataFrame, measure: Measure) -> Estimate:
    """Average a measure over tasks of the means over their datasets.

    `records` are those that did not fail, with `task`, `dataset` and the columns of `run_data.COLUMNS`.
    """
    eligible = drop_disturbed(records) if measure.timed else records
    top = _column(eligible, measure.top)
    bottom = 1.0 if measure.bottom is None else _column(eligible, measure.bottom)
    counted = eligible.assign(top=top, bottom=bottom).dropna(subset=["top", "bottom"])
    num_counted, total = len(counted), len(records)
    note = "" if num_counted == total else f"{num_counted} of {total} records"
    lacking = records[~records["dataset"].isin(counted["dataset"])]
    if len(lacking):
        skipped = (measure.timed or measure.with_times) and lacking["ttft_s"].isna().all()
        if not skipped or counted["task"].nunique() < records["task"].nunique():
            timed = lacking.dropna(subset="ttft_s")
            is_disturbed = measure.timed and len(timed) > 0 and drop_disturbed(timed).empty
            reason = "disturbed" if is_disturbed else measure.absent
            part = f": {total - num_counted} of {total}" if num_counted else ""
            return Estimate(records=num_counted, note=reason + part)
        note += f", {counted['dataset'].nunique()} of {records['dataset'].nunique()} datasets"
    result = geometric_mean(counted["top"].to_numpy(float)) if measure.geometric else _average(counted, measure)
    return replace(result, records=num_counted, note="not defined: a sum is zero" if result.value is None else note)


def _column(records: pd.DataFrame, column: Column) -> pd.Series:
    return column(records) if callable(column) else records[column]


def _average(counted: pd.DataFrame, measure: Measure) -> Estimate:
    weights, limits = _weights(counted), (measure.least, measure.most)
    top, bottom, datasets = measure.scale * counted["top"], counted["bottom"], counted["dataset"]
    if datasets.is_unique:
        # One record shows no spread: take the datasets of a task as one, which gives too wide an interval (collapsed
        # strata, Cochran 1977, section 5A.12).
        top, bottom, datasets = top / bottom, None, counted["task"]
    result = estimate(top, bottom, datasets, weights, limits=limits)
    if measure.long_tailed:
        return Estimate(result.value)
    if not measure.by_seed:
        return result
    seeds = counted[measure.by_seed].str.split()
    if seeds.str.len().nunique() != 1 or len(seeds.iloc[0]) < 2:
        return result
    return replace(result, seeds=tuple(measure.scale * weights.to_numpy() @ np.array(seeds.to_list(), dtype=float)))


def _weights(records: pd.DataFrame) -> pd.Series:
    """Return each record's weight in the mean over tasks of the means over their datasets; they sum to 1."""
    num_datasets = records.groupby("task")["dataset"].transform("nunique")
    num_records = records.groupby("dataset")["dataset"].transform("size")
    return 1 / (records["task"].nunique() * num_datasets * num_records)
