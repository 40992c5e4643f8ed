"""The cells of a table: a row's number on a task, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

import pandas as pd

from lazybench.analysis.averages import Measure, Tasks, average, average_by_seed, countable, ran, undisturbed
from lazybench.analysis.blocks import Row
from lazybench.analysis.intervals import Estimate

NO_RUN = "no run"


@dataclass(frozen=True)
class Part:
    """A row's records of a task, or of several together.

    Attributes:
        records: one row a record, failed ones included; of several tasks with a column `task`.
        there: the datasets that the row has a run of.
        members: number of datasets that there could be.
        reason: why no number can be given, empty where one can.
    """

    records: pd.DataFrame
    there: tuple[str, ...]
    members: int
    reason: str


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


def part_of(row: Row, members: Sequence[str]) -> Part:
    """A row's records of the task whose datasets are `members`."""
    run_of = {dataset: run for run in row.runs for dataset in run.datasets}
    there = tuple(name for name in members if name in run_of)
    records = row.records[row.records["dataset"].isin(there)]
    expected = [run_of[name].expected(name) for name in there]
    lacking, failed = set(there) - set(ran(records)["dataset"]), len(records) - len(ran(records))
    reason = ""
    if not there:
        reason = NO_RUN
    elif None in expected or len(records) < sum(expected):
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


def cell(parts: Mapping[str, Part], of: Measure) -> Cell:
    """One measure of a row, as the mean over the tasks of `parts`."""
    whole = together(parts)
    return Cell(None, reason=whole.reason) if whole.reason else measured(ran(whole.records), of)


def measured(records: pd.DataFrame, of: Measure) -> Cell:
    """One measure of records that did not fail, with their `task` and `dataset`: the mean over tasks of datasets'."""
    counted = countable(records, of)
    have, total = len(counted), len(records)
    if counted["dataset"].nunique() < records["dataset"].nunique():
        absent = "disturbed" if of.timed and undisturbed(records).empty else of.absent
        return Cell(None, have, absent if have == 0 else f"{absent}: {total - have} of {total}")
    tasks = _by_task(counted)
    found = average(tasks, of)
    if found is None:
        return Cell(None, have, "not defined: a sum is zero")
    seeds = average_by_seed(tasks, of)
    note = "" if have == total else f"{have} of {total} records"
    return Cell(found, have, note=note, seed_deviation=stdev(seeds) if seeds else None)


def _by_task(records: pd.DataFrame) -> Tasks:
    tasks = (of for _, of in records.groupby("task", sort=False))
    return [[of for _, of in task.groupby("dataset", sort=False)] for task in tasks]
