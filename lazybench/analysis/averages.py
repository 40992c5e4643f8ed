"""Measures and their averages over records, for tables, figures and the tables of `run` and `time`.

A dataset's value is a mean over its records, or a ratio of two means. A task's value is the mean over its datasets, and
the mean of the tasks is the mean over tasks; divergences are averaged over all records together. Failed records are
never included. Speedups are of the records that were timed; other measures have no value if one of the datasets has no
record with the measure's numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lazybench.analysis.intervals import Estimate, bounded_mean, geometric_mean, mean_of_ratios, rounded, student_mean
from lazybench.data.longbench_e import LENGTHS

# The key of the mean of the tasks in a run's scores and in tables.
MEAN = "mean_of_tasks"
Column = str | Callable[[pd.DataFrame], pd.Series]


@dataclass(frozen=True)
class Measure:
    """The mean of column `top` over the mean of column `bottom`; a function computes a column from the records."""

    key: str  # its name in CSV files
    title: str  # heading, with the unit
    top: Column
    bottom: Column | None = None  # None for a mean
    scale: float = 1.0  # factor from the stored value to the value in tables
    digits: int = 2  # decimals in tables
    by_seed: str = ""  # column with one value per seed
    timed: bool = False  # whether it is computed from times
    limits: tuple[float, float] | None = None  # the least and the largest possible value of a record, as in tables
    pooled: Callable[[np.ndarray], Estimate] | None = None  # averages `top` over all records together


def _equal_length_s(records: pd.DataFrame) -> pd.Series:
    """Return the seconds that the method would take for as many tokens as the unmodified model's answer has."""
    steps = records["unmodified_timed_tokens"] - 1
    # An answer of one token has no decode step.
    return records["ttft_s"] + steps * records["decode_step_s"].where(steps > 0, 0)


def _score_difference(records: pd.DataFrame) -> pd.Series:
    return records["score"] - records["unmodified_score"]


def scores_in(group: str, records: pd.DataFrame) -> pd.Series:
    """Return the scores of the records in a group of `DatasetConfig.groups`, missing for the others."""
    if group in LENGTHS:
        is_in = records["length"].between(*LENGTHS[group], inclusive="left")
    else:
        is_in = (" " + records["groups"] + " ").str.contains(f" {group} ", regex=False)
    return records["score"].where(is_in)


def group_measure(group: str) -> Measure:
    """Return the measure of the score of the records in a group."""
    return replace(SCORE, key=f"score_in_{group}", title=group, top=partial(scores_in, group))


_POINTS: dict[str, Any] = {"scale": 100, "limits": (0, 100)}
SCORE = Measure("score", "Score", "score", by_seed="score_by_seed", **_POINTS)
UNMODIFIED_SCORE = Measure("unmodified_score", "Unmodified score", "unmodified_score", **_POINTS)
SCORE_DIFFERENCE = Measure(
    "score_difference", "Score less unmodified", _score_difference, scale=100, limits=(-100, 100)
)
TTFT = Measure("ttft_speedup", "First token (×)", "unmodified_ttft_s", "ttft_s", timed=True)
ANSWER = Measure("answer_speedup", "Whole answer (×)", "unmodified_generation_s", _equal_length_s, timed=True)
GENERATION = Measure("generation_speedup", "Generation (×)", "unmodified_generation_s", "generation_s", timed=True)
DECODE_STEP = Measure("decode_step_speedup", "Decode step (×)", "unmodified_decode_step_s", "decode_step_s", timed=True)
OVER_NOTHING_PRUNED = replace(
    TTFT,
    key="ttft_speedup_over_nothing_pruned",
    title="First token over nothing pruned (×)",
    top="nothing_pruned_ttft_s",
)
COMPUTED = Measure("prompt_computed", "Computed (%)", "prompt_computed", scale=100)
KL = Measure("kl", "KL, mean (nats)", "kl", digits=4, pooled=lambda kls: Estimate(rounded(float(kls.mean()))))
GEOMETRIC_KL = replace(KL, key="geometric_kl", title="KL, geometric mean (nats)", pooled=geometric_mean)
TOKENS = Measure("identical_tokens", "Identical tokens (%)", "identical_tokens", digits=1, **_POINTS)
ANSWERS = Measure("identical_answers", "Identical answers (%)", "identical_answer", digits=1, **_POINTS)


def drop_failed(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records that did not fail."""
    return records[records["error"] == ""]


def average(records: pd.DataFrame, measure: Measure) -> Estimate:
    """Average a measure over tasks of the means over their datasets.

    `records` are those that did not fail, with `task` and `records.COLUMNS`.
    """
    top = column_of(records, measure.top)
    bottom = 1.0 if measure.bottom is None else column_of(records, measure.bottom)
    counted = records.assign(top=top, bottom=bottom).dropna(subset=["top", "bottom"])
    if counted.empty or not (measure.timed or set(counted["dataset"]) == set(records["dataset"])):
        return Estimate(records=len(counted))
    result = measure.pooled(counted["top"].to_numpy(float)) if measure.pooled else _average(counted, measure)
    return replace(result, records=len(counted))


def prefill_variation(times: pd.DataFrame) -> float | None:
    """Return how much the unmodified model's time to first token varies at equal length; None below six records.

    It is the standard deviation of the relative residuals of a least-squares fit of `a*n + b*n**2` to the times, with
    `n` prompt tokens. `times` has `prompt_tokens` and `unmodified_ttft_s`.
    """
    tokens, seconds = (times[key].to_numpy(float) for key in ("prompt_tokens", "unmodified_ttft_s"))
    if len(tokens) < 6:
        return None
    design = np.stack([tokens, tokens**2], axis=1) / seconds[:, None]  # minimises relative residuals
    solution, _, rank, _ = np.linalg.lstsq(design, np.ones_like(tokens), rcond=None)
    return rounded(float(np.sqrt(((design @ solution - 1) ** 2).sum() / (len(tokens) - rank))))


def column_of(records: pd.DataFrame, column: Column) -> pd.Series:
    """Return or compute a measure's column."""
    return column(records) if callable(column) else records[column]


def _average(counted: pd.DataFrame, measure: Measure) -> Estimate:
    weights, top = weights_of(counted), measure.scale * counted["top"]
    if measure.bottom is not None:
        return mean_of_ratios(top, counted["bottom"], counted["dataset"], weights)
    result = bounded_mean(top, weights, measure.limits) if measure.limits else student_mean(top, weights)
    seeds = counted[measure.by_seed].str.split() if measure.by_seed else None
    if seeds is None or seeds.str.len().nunique() != 1 or len(seeds.iloc[0]) < 2:
        return result
    values = measure.scale * weights @ np.array(seeds.to_list(), dtype=float)
    return replace(result, seeds=tuple(map(rounded, values)))


def weights_of(records: pd.DataFrame) -> np.ndarray:
    """Return each record's weight in the mean over tasks of the means over their datasets; they sum to 1."""
    tasks, datasets = (pd.factorize(records[key].to_numpy(object))[0] for key in ("task", "dataset"))
    num_records, task_of = np.bincount(datasets), np.zeros(datasets.max() + 1, dtype=int)
    task_of[datasets] = tasks
    num_datasets = np.bincount(task_of)
    return 1 / (len(num_datasets) * num_datasets[tasks] * num_records[datasets])
