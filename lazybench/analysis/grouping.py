"""Groups runs into the rows of tables, and keeps apart what must not be compared.

A block is all runs of one model on one data. A row of it is one method with one setting: a run, or several on different
records.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from lazybench.analysis.averages import Measure, measured, ran
from lazybench.analysis.intervals import Estimate
from lazybench.analysis.labels import (
    METHODS,
    data_title,
    label,
    method_title,
    model_title,
    short,
    stages,
    strength_order,
)
from lazybench.analysis.run_data import Run
from lazybench.data.facts import CHINESE, DatasetFacts, datasets_of, english, task_names, tasks
from lazybench.identity import class_name, comparable

KEY = ["dataset", "_id"]
NO_RUN = "no run"
_TRACED = ["first_token_kl", "kl"]
# Runs of one row must agree on these in the records that they share.
_ANSWERS = ["length", "prompt_tokens", "score", "prediction_digest", "error"]
_SUBSET = ("limit", "half")  # settings of data that choose among the same records: baselines may differ in them


@dataclass(frozen=True)
class Selection:
    """A row's records of some tasks."""

    records: pd.DataFrame  # failed ones included, with their `task`
    datasets: tuple[str, ...]  # those that the row has a run of
    missing: str  # why no number can be given of them; empty where one can


@dataclass(frozen=True)
class Row:
    """One method with one setting under the same conditions."""

    method: str
    label: str  # method and setting, and the conditions where the block's runs differ in them
    conditions: str  # the label's part about conditions
    runs: tuple[Run, ...]  # the one with most records first

    @cached_property
    def records(self) -> pd.DataFrame:
        """One row a record, from the first run that has it, its divergences from the first run that traced it."""
        records = pd.concat([run.records for run in self.runs])
        records[_TRACED] = records.groupby(KEY)[_TRACED].transform("first")
        return records.drop_duplicates(KEY)

    def select(self, tasks: Mapping[str, Sequence[str]]) -> Selection:
        """Return the records of tasks, which are given with their datasets."""
        runs = {dataset: run for run in reversed(self.runs) for dataset in run.datasets}
        task_of = {name: task for task, names in tasks.items() for name in names if name in runs}
        records = self.records[self.records["dataset"].isin(task_of)]
        records = records.assign(task=records["dataset"].map(task_of))
        reasons = {}
        for task, names in tasks.items():
            covering = {name: runs[name] for name in names if name in runs}
            if reason := _missing(records[records["task"] == task], covering):
                reasons[task] = reason
        missing = next(iter(reasons.values()), "")
        if missing and len(tasks) > 1:
            missing += f": {', '.join(reasons)}"
        return Selection(records, tuple(task_of), missing)

    def measure(self, tasks: Mapping[str, Sequence[str]], measure: Measure) -> Estimate:
        """Average a measure over tasks, which are given with their datasets."""
        selection = self.select(tasks)
        return Estimate(missing=selection.missing) if selection.missing else measured(ran(selection.records), measure)


def _missing(records: pd.DataFrame, runs: Mapping[str, Run]) -> str:
    """Return why a task has no numbers, from its records and the run of each of its datasets; else an empty text."""
    if not runs:
        return NO_RUN
    expected = [run.expected(name) for name, run in runs.items()]
    counts = records["dataset"].value_counts()
    if any(number is None or counts.get(name, 0) < number for name, number in zip(runs, expected, strict=True)):
        return f"unfinished: {len(records)} of {'?' if None in expected else sum(expected)}"
    complete = ran(records)
    if set(runs) <= set(complete["dataset"]):
        return ""
    failed = len(records) - len(complete)
    return f"failed: {failed} of {len(records)}" if failed else "no records"


@dataclass(frozen=True)
class Block:
    """All runs of one model on one data."""

    model: str
    data: str
    rows: tuple[Row, ...]  # in the order of the tables
    differing: dict[str, list[str]]  # values of each condition that the runs do not share

    @property
    def runs(self) -> list[Run]:
        """The runs of all rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def baselines(self) -> list[Row]:
        """The rows of the unmodified model."""
        return [row for row in self.rows if row.method == "baseline"]

    @cached_property
    def records(self) -> pd.DataFrame:
        """The records of all rows."""
        return pd.concat([row.records for row in self.rows])

    @property
    def compared(self) -> list[Row]:
        """The rows without LazyLLM's single-stage schedules, which are Figure 6's, where it has others."""
        num_stages = {row.label: len(stages(row.runs[0])) for row in self.rows if row.method == "lazyllm"}
        several = any(number > 1 for number in num_stages.values())
        return [row for row in self.rows if not (several and num_stages.get(row.label) == 1)]

    @property
    def data_title(self) -> str:
        """The data's title: its label, if it has one."""
        labels = (run.settings["data"].get("label") for run in self.runs)
        return data_title(next(filter(None, labels), self.data))

    @property
    def generated(self) -> bool:
        """Whether LazyBench made the records itself."""
        return any(run.settings["data"].get("source") == "sample" for run in self.runs)

    @property
    def title(self) -> str:
        """Titles of model and data, and the weights' format where all runs agree in it."""
        formats = {run.environment.get("weights_format") for run in self.runs} - {None}
        weights = f" ({formats.pop()})" if len(formats) == 1 else ""
        generated = " (generated records, not LongBench)" if self.generated else ""
        return f"{model_title(self.model)}{weights} on {self.data_title}{generated}"

    @property
    def is_longbench(self) -> bool:
        """Whether it has any of LongBench's English datasets, generated ones included."""
        return any({*run.has, *run.datasets} & set(english()) for run in self.runs)

    @property
    def by_length(self) -> bool:
        """Whether scores are shown by the records' length, too."""
        return any(run.facts[name].by_length for run in self.runs for name in run.datasets)

    @property
    def facts(self) -> dict[str, DatasetFacts]:
        """The facts of all datasets that its runs know."""
        return {name: fact for run in self.runs for name, fact in run.facts.items()}

    def tasks(self) -> dict[str, list[str]]:
        """Return datasets by task: the tasks with records, then each dataset of no task that was run.

        On LongBench's English data all of its six tasks are among them, and every task has all its datasets; on other
        data a task has those of its datasets that there are.
        """
        facts, covered = self.facts, self._covered
        available = {name for run in self.runs for name in run.has} | covered
        grouped = {task: datasets_of(task, facts) for task in task_names(facts)}
        if self.is_longbench:
            shown = {task: names for task, names in grouped.items() if task in tasks() or available & set(names)}
        else:
            shown = {task: [name for name in names if name in available] for task, names in grouped.items()}
        alone = {name: [name] for name, fact in facts.items() if fact.task is None and name in covered}
        return {task: names for task, names in shown.items() if names} | alone

    @property
    def _covered(self) -> set[str]:
        return {name for run in self.runs for name in run.datasets}

    def tasks_run(self) -> dict[str, list[str]]:
        """Return datasets by task, of the tasks with a run."""
        return {task: names for task, names in self.tasks().items() if self._covered & set(names)}

    def tasks_compared(self) -> dict[str, list[str]]:
        """Return the tasks that one number over all of them is about: not the Chinese one, unless it is alone."""
        run = self.tasks_run()
        return {task: names for task, names in run.items() if task != CHINESE} or run

    def tasks_averaged(self) -> dict[str, list[str]]:
        """Return the tasks in the mean over the tasks, of which a dataset by itself is none."""
        return {task: names for task, names in self.tasks_compared().items() if names != [task]}


def conditions(run: Run) -> dict[str, str]:
    """Return the run's conditions by name, as text short enough for a label."""
    # Runs of earlier versions lack what is empty.
    return {key: short(str(None if value in ([], {}) else value)) for key, value in _comparable(run).items()}


def agree(run: Run, other: Run) -> bool:
    """Return whether two runs share all that must match, as far as both have it."""
    one, another = (_comparable(each, {name: each.facts[name] for name in each.datasets}) for each in (run, other))
    return all(one[key] == another[key] for key in one.keys() & another.keys())


def _comparable(run: Run, facts: Mapping[str, DatasetFacts] | None = None) -> dict[str, Any]:
    """Return all that must match; a baseline is a reference record by record, whichever records it is on."""
    values = comparable(run.settings, run.environment, facts)
    left_out = {f"data.{key}" for key in _SUBSET} if run.method == "baseline" else set()
    return {key: value for key, value in values.items() if key not in left_out}


def group(runs: Sequence[Run]) -> list[Block]:
    """Group runs into a block for each model and data."""
    names = sorted({(run.model, run.data) for run in runs})
    return [_block([run for run in runs if (run.model, run.data) == name]) for name in names]


def _block(runs: list[Run]) -> Block:
    runs = _with_unique_titles(runs)
    of_run = {run.name: conditions(run) for run in runs}
    values: dict[str, set[str]] = {}
    for key, value in (item for run in runs for item in of_run[run.name].items()):
        values.setdefault(key, set()).add(value)
    differing = {key: sorted(options) for key, options in values.items() if len(options) > 1}
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        own = of_run[run.name]
        under = ", ".join(f"{key}={own[key]}" for key in differing if key in own)
        groups.setdefault((run.method, label(run), under), []).append(run)
    rows = [row for key, members in groups.items() for row in _rows(*key, members)]
    order = {name: position for position, name in enumerate(METHODS)}
    rows.sort(key=lambda row: (order.get(row.method, len(order)), row.method, strength_order(row.label)))
    return Block(runs[0].model, runs[0].data, tuple(rows), differing)


def _with_unique_titles(runs: list[Run]) -> list[Run]:
    """Return the runs, with the method's name added to a title that several methods have."""
    count = Counter(title for _, title in {(run.method, method_title(run)) for run in runs})

    def renamed(run: Run) -> Run:
        if count[title := method_title(run)] == 1:
            return run
        appearance = {**(run.environment.get("appearance") or {}), "label": f"{title} ({run.method})"}
        return replace(run, environment={**run.environment, "appearance": appearance})

    return list(map(renamed, runs))


def _rows(method: str, name: str, under: str, runs: list[Run]) -> list[Row]:
    """Return one row where runs differ only in their records, else several, told apart by a run's hash."""
    members: list[list[Run]] = []
    # Finished runs, and those that cover most, come first.
    for run in sorted(runs, key=lambda run: (not run.finished, -len(run.datasets), -len(run.records), run.name)):
        fitting = (row for row in members if not any(_conflict(run, other) for other in row))
        if (row := next(fitting, None)) is not None:
            row.append(run)
        else:
            members.append([run])
    full = f"{name} [{under}]" if under else name
    return [
        Row(method, full if len(members) == 1 else f"{full} #{row[0].digest}", under, tuple(row)) for row in members
    ]


def _conflict(run: Run, other: Run) -> bool:
    """Return whether more than their records differs between two runs of one name and setting."""
    if class_name(run.settings["method"]) != class_name(other.settings["method"]):
        return True
    shared = {*run.datasets} & {*other.datasets}
    if not shared:
        return False
    if _timing(run) != _timing(other) or not agree(run, other):
        return True
    one, another = (
        each.records[each.records["dataset"].isin(shared)].set_index(KEY)[_ANSWERS] for each in (run, other)
    )
    both = one.index.intersection(another.index)
    if not one.loc[both].equals(another.loc[both]):
        return True
    # Where the settings choose the same records, finished runs must have the same.
    same_subset = all(run.settings["data"].get(key) == other.settings["data"].get(key) for key in _SUBSET)
    return same_subset and run.finished and other.finished and len(both) < max(len(one), len(another))


def _timing(run: Run) -> dict[str, Any]:
    """Return how times were taken; a baseline has no other engines timed beside it."""
    timing = run.settings.get("timing") or {}
    return {key: value for key, value in timing.items() if run.method != "baseline" or key not in ("paired", "keep_1")}
