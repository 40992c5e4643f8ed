"""What is measured, how records make one number, and the cells of tables: the one place where they are averaged.

A dataset's value is a mean over its records, or a ratio of two means. A task's value is the mean over its datasets, and
the mean of the tasks is the mean over those. Failed records are in none of them, disturbed ones in none that is made of
times. A record that lacks a number is left out of it, and where a dataset has no record left there is no number: unless
it is one that timed records alone have, and `timing.every` passed over all of the dataset. Then the others stand for
its task, and a note says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import lt

import numpy as np
import pandas as pd

from lazybench.analysis.blocks import Row
from lazybench.analysis.intervals import Estimate, estimate, geometric_mean
from lazybench.data.longbench_e import LENGTHS

# Records with the columns of `run_data.COLUMNS`, by task and dataset.
Tasks = Sequence[Sequence[pd.DataFrame]]

# The key of the mean of a run's tasks in its scores, and of its section in tables.
MEAN = "mean_of_tasks"
NO_RUN = "no run"
_DECIDES = 0.25  # of a mean, that a single record has


@dataclass(frozen=True)
class Measure:
    """A number of a method on a dataset: the mean of the column `top`, over that of `bottom` if there is one."""

    key: str  # name of its columns in CSV files
    title: str  # heading, with the unit
    top: str  # column of the numerator
    bottom: str = ""  # column of the denominator
    scale: float = 1.0  # factor from what is stored to what is shown
    digits: int = 2  # shown after the point
    absent: str = "not timed"  # why there is none where the columns are empty
    by_seed: str = ""  # column with the values of several seeds, of which the value is the mean
    timed: bool = False  # whether it is made of times, which leaves out disturbed records
    beside_times: bool = False  # whether it is recorded of timed records alone, and yet made of no times
    long_tailed: bool = False  # whether a few records may have most of the sum: an interval then needs more records
    least: float = 0.0  # the smallest value there can be, as shown; no interval goes below it
    most: float = math.inf  # the largest one
    derive: Callable[[pd.DataFrame], pd.Series] | None = None  # makes `bottom` of columns, where it is none itself
    lengths: tuple[float, float] | None = None  # of the records that count: from so many words on, below so many
    lower_is_better: bool = False
    percentile: int | None = None  # of `top` over all records together, in place of its mean; it has no interval
    geometric: bool = False  # the geometric mean of `top` over all records together


def _speedups(key: str, title: str, time: str) -> tuple[Measure, Measure]:
    """A speedup over the unmodified model, and over the method's own engine with nothing pruned."""
    over = Measure(key, f"{title} (×)", f"baseline_{time}", time, timed=True)
    other = {"key": f"{key}_over_keep_1", "title": f"{title} over keep = 1 (×)", "top": f"keep_1_{time}"}
    return over, replace(over, absent="not timed with nothing pruned", **other)


def _equal_length_s(records: pd.DataFrame) -> pd.Series:
    """Seconds that the method would take, at its own TTFT and decode step, for as many tokens as the baseline gave."""
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
_SAME = replace(_PERCENT, digits=1, most=100, beside_times=True)
TOKENS = replace(_SAME, key="identical_tokens", title="Identical tokens (%)", top="identical_tokens")
ANSWERS = replace(
    _SAME, key="identical_answers", title="Identical answers (%)", top="identical_answer", absent="not paired"
)


def ran(records: pd.DataFrame) -> pd.DataFrame:
    """The records that did not fail."""
    return records[records["error"] == ""]


def undisturbed(records: pd.DataFrame) -> pd.DataFrame:
    """The records whose passes no other work on the machine disturbed."""
    return records[records["disturbed"] != 1]


def countable(records: pd.DataFrame, of: Measure) -> pd.DataFrame:
    """The records that count for a measure, of those that did not fail."""
    if of.timed:
        records = undisturbed(records)
    if of.derive is not None:
        records = records.assign(**{of.bottom: of.derive(records)})
    if of.lengths is not None:
        low, high = of.lengths
        records = records[(records["length"] >= low) & (records["length"] < high)]
    return records.dropna(subset=[of.top, *([of.bottom] if of.bottom else [])])


def average(tasks: Tasks, of: Measure) -> Estimate | None:
    """The mean over tasks of the mean over their datasets, of records that `countable` gives, with its interval.

    None where a dataset has no records, or a ratio has a denominator of zero.
    """
    weights = [1 / len(tasks) / len(datasets) for datasets in tasks for _ in datasets]
    ratios = [_ratio(records, of) for datasets in tasks for records in datasets]
    return estimate(ratios, weights, long_tailed=of.long_tailed, limits=(of.least, of.most))


def _average_by_seed(tasks: Tasks, of: Measure) -> list[float] | None:
    """The same average once for each seed; None unless all records have the same several seeds."""
    if not of.by_seed:
        return None
    seeds = [[[text.split() for text in records[of.by_seed]] for records in datasets] for datasets in tasks]
    counts = {len(values) for datasets in seeds for records in datasets for values in records or [[]]}
    if len(counts) != 1 or counts <= {0, 1}:
        return None
    means = [np.mean([np.array(records, float).mean(axis=0) for records in datasets], axis=0) for datasets in seeds]
    return (of.scale * np.mean(means, axis=0)).tolist()


def _ratio(records: pd.DataFrame, of: Measure) -> tuple[np.ndarray, np.ndarray]:
    top = records[of.top].to_numpy(float)[None] * of.scale
    return top, records[of.bottom].to_numpy(float)[None] if of.bottom else np.ones_like(top)


@dataclass(frozen=True)
class Part:
    """A row's records of a task, or of several together."""

    records: pd.DataFrame  # failed ones included; of several tasks with a column `task`
    there: tuple[str, ...]  # the datasets that the row has a run of
    members: int  # number of datasets that there could be
    reason: str  # why no number can be given, empty where one can


@dataclass(frozen=True)
class Cell:
    """A measured number, or why there is none."""

    estimate: Estimate | None
    records: int = 0  # number of records behind it
    reason: str = ""  # why it is missing
    note: str = ""  # what it does not cover or show
    seeds: list[float] | None = None  # the same number once for each seed, where there are several


def part_of(row: Row, members: Sequence[str]) -> Part:
    """A row's records of the task whose datasets are `members`."""
    run_of = {dataset: run for run in reversed(row.runs) for dataset in run.datasets}
    there = tuple(name for name in members if name in run_of)
    records = row.records[row.records["dataset"].isin(there)]
    expected = [run_of[name].expected(name) for name in there]
    done = [(records["dataset"] == name).sum() for name in there]
    lacking, failed = set(there) - set(ran(records)["dataset"]), len(records) - len(ran(records))
    reason = ""
    if not there:
        reason = NO_RUN
    elif None in expected or any(map(lt, done, expected)):
        reason = f"unfinished: {len(records)} of {'?' if None in expected else sum(expected)}"
    elif lacking:
        reason = f"failed: {failed} of {len(records)}" if failed else "no records"
    return Part(records, there, len(members), reason)


def together(parts: Mapping[str, Part]) -> Part:
    """The records of several tasks of a row, given by task."""
    missing = {task: part.reason for task, part in parts.items() if part.reason}
    reason = next(iter(missing.values()), "")
    return Part(
        pd.concat([part.records.assign(task=task) for task, part in parts.items()]),
        tuple(name for part in parts.values() for name in part.there),
        sum(part.members for part in parts.values()),
        f"{reason}: {', '.join(missing)}" if reason and len(parts) > 1 else reason,
    )


def cell(row: Row, tasks: Mapping[str, Sequence[str]], of: Measure) -> Cell:
    """One measure of a row, as the mean over tasks, which are given with their datasets."""
    whole = together({task: part_of(row, members) for task, members in tasks.items()})
    return Cell(None, reason=whole.reason) if whole.reason else measured(ran(whole.records), of)


def measured(records: pd.DataFrame, of: Measure) -> Cell:
    """One measure of records that did not fail, with their `task` and `dataset`: the mean over tasks of datasets'."""
    counted = countable(records, of)
    have, total = len(counted), len(records)
    note = "" if have == total else f"{have} of {total} records"
    lacking = records[~records["dataset"].isin(counted["dataset"])]
    if len(lacking):
        passed_over = (of.timed or of.beside_times) and lacking["ttft_s"].isna().all()
        if not passed_over or counted["task"].nunique() < records["task"].nunique():
            absent = "disturbed" if of.timed and undisturbed(records).empty else of.absent
            return Cell(None, have, absent if have == 0 else f"{absent}: {total - have} of {total}")
        note += f", {counted['dataset'].nunique()} of {records['dataset'].nunique()} datasets"
    if of.percentile is not None:
        return Cell(Estimate(float(np.percentile(counted[of.top], of.percentile)), None, None), have, note=note)
    if of.geometric:
        return Cell(geometric_mean(counted[of.top].to_numpy(float)), have, note=note)
    tasks = _by_task(counted)
    found = average(tasks, of)
    if found is None:
        return Cell(None, have, "not defined: a sum is zero")
    if of.long_tailed and found.low is not None:
        note = "; ".join(filter(None, [note, _without_largest(counted, found, of)]))
    return Cell(found, have, note=note, seeds=_average_by_seed(tasks, of))


def _by_task(records: pd.DataFrame) -> Tasks:
    by_task = (of for _, of in records.groupby("task", sort=False))
    return [[of for _, of in task.groupby("dataset", sort=False)] for task in by_task]


def _without_largest(records: pd.DataFrame, whole: Estimate, of: Measure) -> str:
    """The mean without the record that has most of it, where that is more than a quarter; else an empty text."""
    alike = records.groupby("dataset")[of.top].transform("size") * records.groupby("task")["dataset"].transform(
        "nunique"
    )
    parts = of.scale * records[of.top] / alike / records["task"].nunique() / whole.value
    if parts.max() <= _DECIDES:
        return ""
    rest = average(_by_task(records[parts < parts.max()]), of)
    return f"{rest.value:.{of.digits}f} without one record" if rest else ""
