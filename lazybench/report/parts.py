"""Which of a row's records make a task's number, and why there may be none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from lazybench.report.blocks import Row

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
        return sum(int((frame["error"] != "").sum()) for frame in self.datasets.values())

    @property
    def disturbed(self) -> int:
        """Number of records whose times other work on the machine had a part in."""
        return sum(int((frame["disturbed"] == 1).sum()) for frame in self.datasets.values())


def together(parts: Iterable[Part]) -> Part:
    """The records of several tasks of a row; `reason` is that of the first task that has one."""
    parts = list(parts)
    datasets = {name: frame for part in parts for name, frame in part.datasets.items()}
    return Part(datasets, sum(part.members for part in parts), next((of.reason for of in parts if of.reason), ""))


def part_of(row: Row, members: list[str]) -> Part:
    """A row's records of the task whose datasets are `members`."""
    datasets, expected = {}, []
    for run in row.runs:
        planned = run.datasets
        for dataset in members:
            if dataset in planned:
                datasets[dataset] = run.records[run.records["dataset"] == dataset]
                expected.append(run.expected(dataset))
    # The table's order, whatever the order of the runs.
    datasets = {name: datasets[name] for name in members if name in datasets}
    part = Part(datasets, len(members))
    if not datasets:
        reason = NO_RUN
    elif None in expected or part.records < sum(expected):
        total = "?" if None in expected else sum(expected)
        reason = f"unfinished: {part.records} of {total}"
    elif part.failed and any((frame["error"] != "").all() for frame in datasets.values()):
        reason = f"failed: {part.failed} of {part.records}"
    elif any(frame.empty for frame in datasets.values()):
        reason = "no records"
    else:
        reason = ""
    return Part(datasets, len(members), reason)
