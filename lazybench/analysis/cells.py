"""The cells of a table: a row's number on a task, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import stdev

import pandas as pd

from lazybench.analysis.averages import Measure, average, average_by_seed, ran, undisturbed, usable
from lazybench.analysis.blocks import Row
from lazybench.analysis.intervals import Estimate

NO_RUN = "no run"


@dataclass(frozen=True)
class Part:
    """A row's records of one task.

    Attributes:
        datasets: records by dataset, failed ones included.
        members: number of datasets the task has.
        reason: why no number can be given, empty where one can.
    """

    datasets: dict[str, pd.DataFrame] = field(default_factory=dict)
    members: int = 0
    reason: str = ""

    @property
    def records(self) -> int:
        """Number of records, failed ones included."""
        return sum(map(len, self.datasets.values()))

    @property
    def failed(self) -> int:
        """Number of records that the method could not run."""
        return self.records - sum(len(ran(records)) for records in self.datasets.values())

    @property
    def disturbed(self) -> int:
        """Number of records with a pass that other work on the machine disturbed."""
        return self.records - sum(len(undisturbed(records)) for records in self.datasets.values())


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


def together(parts: Iterable[Part]) -> Part:
    """The records of several tasks of a row; `reason` is that of the first task that has one."""
    parts = list(parts)
    datasets = {name: records for part in parts for name, records in part.datasets.items()}
    return Part(datasets, sum(part.members for part in parts), next((of.reason for of in parts if of.reason), ""))


def part_of(row: Row, members: list[str]) -> Part:
    """A row's records of the task whose datasets are `members`."""
    run_of = {dataset: run for run in row.runs for dataset in run.datasets}
    datasets = {
        name: run_of[name].records[run_of[name].records["dataset"] == name] for name in members if name in run_of
    }
    expected = [run_of[name].expected(name) for name in datasets]
    part = Part(datasets, len(members))
    if not datasets:
        reason = NO_RUN
    elif None in expected or part.records < sum(expected):
        reason = f"unfinished: {part.records} of {'?' if None in expected else sum(expected)}"
    elif part.failed and any(ran(records).empty for records in datasets.values()):
        reason = f"failed: {part.failed} of {part.records}"
    elif any(records.empty for records in datasets.values()):
        reason = "no records"
    else:
        reason = ""
    return Part(datasets, len(members), reason)


def cell(parts: Mapping[str, Part], of: Measure) -> Cell:
    """One measure of a row, as the mean over the tasks of `parts`."""
    missing = {task: part.reason for task, part in parts.items() if part.reason}
    if missing:
        reason = next(iter(missing.values()))
        return Cell(None, reason=reason if len(parts) == 1 else f"{reason}: {', '.join(missing)}")
    tasks = [[ran(records) for records in part.datasets.values()] for part in parts.values()]
    counted = usable(tasks, of)
    have, total = (sum(len(records) for datasets in group for records in datasets) for group in (counted, tasks))
    if any(records.empty for datasets in counted for records in datasets):
        disturbed = of.timed and all(undisturbed(records).empty for datasets in tasks for records in datasets)
        absent = "disturbed" if disturbed else of.absent
        return Cell(None, have, absent if have == 0 else f"{absent}: {total - have} of {total}")
    found = average(counted, of)
    if found is None:
        return Cell(None, have, "not defined: a sum is zero")
    seeds = average_by_seed(counted, of)
    note = "" if have == total else f"{have} of {total} records"
    return Cell(found, have, note=note, seed_deviation=stdev(seeds) if seeds else None)
