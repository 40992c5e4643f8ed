"""Measures, and how they are averaged over records: by tables, by figures, and by a run's own summary.

A dataset's value is a mean over its records, or a ratio of two means. A task's value is the mean over its datasets, and
the mean of the tasks is the mean over those. No value includes failed records, and none that is made of times includes
disturbed ones. A record that lacks a number is left out of it. Where that leaves a dataset without records, there is no
value, with one exception: if `timing.every` skipped the whole dataset, the others stand for its task, with a note.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lazybench.analysis.intervals import Estimate, estimate, geometric_mean
from lazybench.data.longbench_e import LENGTHS

# The key of the mean of a run's tasks in its scores, and of its section in tables.
MEAN = "mean_of_tasks"
_DECISIVE = 0.25  # a record with a larger share of a mean than this is noted


@dataclass(frozen=True)
class Measure:
    """A number of a method on a dataset: the mean of the column `top`, over the mean of `bottom` if there is one."""

    key: str  # prefix of its columns in CSV files
    title: str  # heading, with the unit
    top: str  # column of the numerator
    bottom: str = ""  # column of the denominator
    scale: float = 1.0  # factor from the stored value to the one in tables
    digits: int = 2  # decimals in tables
    absent: str = "not timed"  # why it is missing where its columns are empty
    by_seed: str = ""  # column with one value a seed
    timed: bool = False  # whether it is made of times: disturbed records do not count
    with_times: bool = False  # whether only timed records have it, though it is not made of times
    long_tailed: bool = False  # whether a few records may have most of the sum: an interval then needs more records
    least: float = 0.0  # smallest possible value, in the unit of tables
    most: float = math.inf  # largest possible value
    derive: Callable[[pd.DataFrame], pd.Series] | None = None  # computes `bottom` where it is not a column
    lengths: tuple[float, float] | None = None  # only records with at least, and less than, this number of words
    lower_is_better: bool = False
    percentile: int | None = None  # of `top` over all records together, without an interval, instead of the mean
    geometric: bool = False  # the geometric mean of `top` over all records together


def _speedups(key: str, title: str, time: str) -> tuple[Measure, Measure]:
    """Return the speedups over the unmodified model, and over the method's own engine with nothing pruned."""
    over_baseline = Measure(key, f"{title} (×)", f"baseline_{time}", time, timed=True)
    changes = {"key": f"{key}_over_keep_1", "title": f"{title} over keep = 1 (×)", "top": f"keep_1_{time}"}
    return over_baseline, replace(over_baseline, absent="not timed with nothing pruned", **changes)


def _equal_length_s(records: pd.DataFrame) -> pd.Series:
    """Return the time of the baseline's number of tokens at the method's own TTFT and decode step, in seconds."""
    steps = records["baseline_new_tokens"] - 1
    # An answer of one token has no decode step.
    return records["ttft_s"] + steps * records["decode_step_s"].where(steps > 0, 0)


SCORE = Measure("score", "Score", "score", scale=100, by_seed="score_by_seed", most=100)
_DIFFERENCE = {"key": "score_difference", "title": "Score less the baseline's", "top": "score_difference"}
SCORE_DIFFERENCE = Measure(**_DIFFERENCE, scale=100, absent="no baseline", least=-100, most=100)
SCORE_BY_LENGTH = tuple(
    replace(SCORE, key=f"score_{name}", title=f"Score, {name}", absent="not of this length", lengths=lengths)
    for name, lengths in LENGTHS.items()
)
TTFT = _speedups("ttft_speedup", "TTFT speedup", "ttft_s")
GENERATION = _speedups("generation_speedup", "Generation speedup", "generation_s")
_EQUAL = {"key": "generation_speedup_equal_length", "title": "Generation speedup at equal length (×)"}
EQUAL_LENGTH = replace(GENERATION[0], bottom="equal_length_s", derive=_equal_length_s, **_EQUAL)
DECODE_STEP = _speedups("decode_step_speedup", "Decode step speedup", "decode_step_s")
_MEAN_TTFT = Measure("ttft_s", "Mean TTFT (s)", "ttft_s", digits=3, timed=True, lower_is_better=True)
TTFT_SECONDS = (
    _MEAN_TTFT,
    *(replace(_MEAN_TTFT, key=f"ttft_p{part}_s", title=f"TTFT p{part} (s)", percentile=part) for part in (50, 90, 99)),
)
_PERCENT = Measure("", "", "", scale=100, absent="not recorded")
COMPUTED = replace(
    _PERCENT, key="prompt_computed", title="Prompt tokens computed (%)", top="prompt_computed", lower_is_better=True
)
_KL = Measure("", "", "", digits=4, absent="not traced", long_tailed=True, lower_is_better=True)
FIRST_TOKEN_KL = replace(_KL, key="first_token_kl", title="KL of first token (nats)", top="first_token_kl")
KL = replace(_KL, key="kl", title="KL of next token (nats)", top="kl")
GEOMETRIC_KL = replace(KL, key="geometric_kl", title="KL, geometric mean (nats)", geometric=True)
_SAME = replace(_PERCENT, digits=1, most=100, with_times=True)
TOKENS = replace(_SAME, key="identical_tokens", title="Identical tokens (%)", top="identical_tokens")
ANSWERS = replace(
    _SAME, key="identical_answers", title="Identical answers (%)", top="identical_answer", absent="not paired"
)


def ran(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records that did not fail."""
    return records[records["error"] == ""]


def undisturbed(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records whose passes no other work on the machine disturbed."""
    return records[records["disturbed"] != 1]


def measured(records: pd.DataFrame, measure: Measure) -> Estimate:
    """Average a measure over tasks of the means over their datasets.

    Args:
        records: those that did not fail, with `task`, `dataset` and the columns of `run_data.COLUMNS`.
        measure: the measure.
    """
    counted, total = _countable(records, measure), len(records)
    note = "" if len(counted) == total else f"{len(counted)} of {total} records"
    lacking = records[~records["dataset"].isin(counted["dataset"])]
    if len(lacking):
        skipped = (measure.timed or measure.with_times) and lacking["ttft_s"].isna().all()
        if not skipped or counted["task"].nunique() < records["task"].nunique():
            missing = "disturbed" if measure.timed and undisturbed(records).empty else measure.absent
            if len(counted):
                missing += f": {total - len(counted)} of {total}"
            return Estimate(records=len(counted), missing=missing)
        note += f", {counted['dataset'].nunique()} of {records['dataset'].nunique()} datasets"
    values = counted[measure.top].to_numpy(float)
    if measure.percentile is not None:
        result = Estimate(float(np.percentile(values, measure.percentile)))
    elif measure.geometric:
        result = geometric_mean(values)
    else:
        result = _average(counted, measure)
        if measure.long_tailed and result.low is not None:
            note = "; ".join(filter(None, [note, _without_largest(counted, result.value, measure)]))
    missing = "not defined: a sum is zero" if result.value is None else ""
    return replace(result, records=len(counted), missing=missing, note="" if missing else note)


def _countable(records: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Return the records that count for a measure, of those that did not fail."""
    if measure.timed:
        records = undisturbed(records)
    if measure.derive is not None:
        records = records.assign(**{measure.bottom: measure.derive(records)})
    if measure.lengths is not None:
        low, high = measure.lengths
        records = records[(records["length"] >= low) & (records["length"] < high)]
    return records.dropna(subset=[measure.top, *([measure.bottom] if measure.bottom else [])])


def _average(records: pd.DataFrame, measure: Measure) -> Estimate:
    weights = _weights(records)
    result = estimate(
        measure.scale * records[measure.top],
        records[measure.bottom] if measure.bottom else None,
        records["dataset"],
        weights,
        long_tailed=measure.long_tailed,
        limits=(measure.least, measure.most),
    )
    if not measure.by_seed:
        return result
    seeds = records[measure.by_seed].str.split()
    if seeds.str.len().nunique() != 1 or len(seeds.iloc[0]) < 2:
        return result
    return replace(result, seeds=tuple(measure.scale * weights.to_numpy() @ np.array(seeds.to_list(), dtype=float)))


def _weights(records: pd.DataFrame) -> pd.Series:
    """Return each record's weight in the mean over tasks of the means over their datasets; they sum to 1."""
    num_datasets = records.groupby("task")["dataset"].transform("nunique")
    num_records = records.groupby("dataset")["dataset"].transform("size")
    return 1 / (records["task"].nunique() * num_datasets * num_records)


def _without_largest(records: pd.DataFrame, mean: float, measure: Measure) -> str:
    """Describe the mean without the record with the largest share of it, if that is decisive; else an empty text."""
    shares = measure.scale * records[measure.top] * _weights(records) / mean
    if shares.max() <= _DECISIVE:
        return ""
    rest = _average(records[shares < shares.max()], measure).value
    return "" if rest is None else f"{rest:.{measure.digits}f} without one record"
