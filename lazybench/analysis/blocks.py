"""Joins runs into the rows of a table, and keeps apart what must not be compared."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

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

_KEY = ["dataset", "_id"]
_TRACED = ["first_token_kl", "kl"]
# What runs of one name and setting must agree on in the records that they share.
_ANSWERS = ["length", "prompt_tokens", "score", "prediction_digest", "error"]
# What runs must share for their numbers to be compared, besides model and data.
_MODEL = ("limit", "chat", "remove", "shape")
_DATA = ("limit", "half", "seed", "tokens", "depths")
_WHICH_RECORDS = ("limit", "half")  # which of the same records a run is on: baselines may differ in it
_ENVIRONMENT = ("results_version", "weights_format", "dtype", "attention", "device", "threads")
_VERSIONS = ("torch", "transformers")


@dataclass(frozen=True)
class Row:
    """One method with one setting under the same conditions: a run, or several over different records."""

    method: str
    label: str  # method and setting, and the conditions where the block's runs differ in them
    conditions: str  # the part of the label about conditions, empty where all runs share them
    runs: tuple[Run, ...]  # those that cover most first

    @cached_property
    def records(self) -> pd.DataFrame:
        """One row a record, from the first run that has it; its divergences from the first that traced it."""
        records = pd.concat([run.records for run in self.runs])
        records[_TRACED] = records.groupby(_KEY)[_TRACED].transform("first")
        return records.drop_duplicates(_KEY)


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

    @cached_property
    def records(self) -> pd.DataFrame:
        """One row a record: its `model`, `data`, `method`, `label` and `task` beside a run's own columns."""
        task_of = {name: task for task, names in self.tasks().items() for name in names}
        every = pd.concat([row.records.assign(method=row.method, label=row.label) for row in self.rows])
        return every.assign(model=self.model, data=self.data, task=every["dataset"].map(task_of))

    @property
    def compared(self) -> list[Row]:
        """The rows without LazyLLM's single-stage schedules, which are Figure 6's, where it has others."""
        single = [row.label for row in self.rows if row.method == "lazyllm" and len(stages(row.runs[0])) == 1]
        several = any(row.method == "lazyllm" and len(stages(row.runs[0])) > 1 for row in self.rows)
        return [row for row in self.rows if not (several and row.label in single)]

    @property
    def called(self) -> str:
        """What the data is called: its label, if it has one."""
        return next((label for run in self.runs if (label := run.settings["data"].get("label"))), self.data)

    @property
    def generated(self) -> bool:
        """Whether LazyBench made the records itself."""
        return any(run.settings["data"].get("source") == "sample" for run in self.runs)

    @property
    def title(self) -> str:
        """Model and data by a reader's names, with what the weights are where all runs agree in that."""
        formats = {run.environment.get("weights_format") for run in self.runs} - {None}
        weights = f" ({formats.pop()})" if len(formats) == 1 else ""
        generated = " (generated records, not LongBench)" if self.generated else ""
        return f"{model_title(self.model)}{weights} on {data_title(self.called)}{generated}"

    @property
    def of_longbench(self) -> bool:
        """Whether there are any of LongBench's English datasets, generated ones included."""
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
        """Datasets by task: the tasks of which there are records, then each dataset that stands alone and was run.

        Where there are any of LongBench's English datasets, its six tasks are all among them, and every task is whole;
        on other data a task is those of its datasets that there are.
        """
        facts = self.facts
        run = {name for run in self.runs for name in run.datasets}
        there = {name for run in self.runs for name in run.has} | run
        grouped = {task: datasets_of(task, facts) for task in task_names(facts)}
        if self.of_longbench:
            shown = {task: names for task, names in grouped.items() if task in tasks() or there & set(names)}
        else:
            shown = {task: [name for name in names if name in there] for task, names in grouped.items()}
        alone = {name: [name] for name, fact in facts.items() if fact.task is None and name in run}
        return {task: names for task, names in shown.items() if names} | alone

    def tasks_run(self) -> dict[str, list[str]]:
        """Datasets by task, of the tasks with a run."""
        run = {name for run in self.runs for name in run.datasets}
        return {task: names for task, names in self.tasks().items() if run & set(names)}

    def judged(self) -> dict[str, list[str]]:
        """Those that methods are compared on as a whole: without the Chinese part of the others, unless it is all."""
        run = self.tasks_run()
        return {task: names for task, names in run.items() if task != CHINESE} or run

    def averaged(self) -> dict[str, list[str]]:
        """Those that count for the mean over the tasks, of which a dataset by itself is none."""
        return {task: names for task, names in self.judged().items() if names != [task]}


def conditions(run: Run) -> dict[str, str]:
    """The run's conditions by name, as text short enough for a label; code of the user's has one a module.

    A baseline is a reference record by record, so which records it is on is no condition of it.
    """
    settings, environment = run.settings, run.environment
    versions = environment.get("versions") or {}
    found = {key: environment.get(key) for key in _ENVIRONMENT}
    found |= {key: versions.get(key) for key in _VERSIONS}
    found |= {f"model.{key}": settings["model"].get(key) for key in _MODEL}
    data = [key for key in _DATA if run.method != "baseline" or key not in _WHICH_RECORDS]
    found |= {f"data.{key}": settings["data"].get(key) for key in data}
    found["timing.warmup"] = (settings.get("timing") or {}).get("warmup")
    found["weights"] = settings.get("weights")
    found |= {f"code.{module}": code for module, code in (settings.get("code") or {}).items()}
    # Runs of earlier versions lack what is empty.
    return {key: short(str(None if value in ([], {}) else value)) for key, value in found.items()}


def agree(run: Run, other: Run) -> bool:
    """Whether two runs share all conditions that both have, and the facts of the datasets that both ran on."""
    one, another = conditions(run), conditions(other)
    facts = (run.facts[name].decisive == other.facts[name].decisive for name in {*run.datasets} & {*other.datasets})
    return all(one[key] == another[key] for key in one.keys() & another.keys()) and all(facts)


def blocks(runs: list[Run]) -> list[Block]:
    """The runs, one block a model and data."""
    names = sorted({(run.model, run.data) for run in runs})
    return [_block(_told_apart([run for run in runs if (run.model, run.data) == name])) for name in names]


def _told_apart(runs: list[Run]) -> list[Run]:
    """The runs, with the method's name behind what several methods want to be called."""
    wanted = Counter(title for _, title in {(run.method, method_title(run)) for run in runs})

    def told(run: Run) -> Run:
        if wanted[title := method_title(run)] == 1:
            return run
        appearance = {**(run.environment.get("appearance") or {}), "label": f"{title} ({run.method})"}
        return replace(run, environment={**run.environment, "appearance": appearance})

    return list(map(told, runs))


def _block(runs: list[Run]) -> Block:
    of = {run.name: conditions(run) for run in runs}
    values: dict[str, set[str]] = {}
    for key, value in (item for run in runs for item in of[run.name].items()):
        values.setdefault(key, set()).add(value)
    differing = {key: sorted(found) for key, found in values.items() if len(found) > 1}
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        under = ", ".join(f"{key}={of[run.name][key]}" for key in differing if key in of[run.name])
        groups.setdefault((run.method, label(run), under), []).append(run)
    rows = [row for key, members in groups.items() for row in _rows(*key, members)]
    order = {name: place for place, name in enumerate(METHODS)}
    rows.sort(key=lambda row: (order.get(row.method, len(order)), row.method, strength_order(row.label)))
    return Block(runs[0].model, runs[0].data, tuple(rows), differing)


def _rows(method: str, name: str, under: str, runs: list[Run]) -> list[Row]:
    """One row where runs differ only in their records, else further ones with a run's hash behind them."""
    sets: list[list[Run]] = []
    # The runs that cover most, and finished ones before others, go together.
    for run in sorted(runs, key=lambda run: (not run.finished, -len(run.datasets), -len(run.records), run.name)):
        free = (of for of in sets if not any(_conflict(run, other) for other in of))
        members = next(free, None)
        if members is None:
            sets.append(members := [])
        members.append(run)
    full = f"{name} [{under}]" if under else name
    return [
        Row(method, full if len(sets) == 1 else f"{full} #{members[0].digest}", under, tuple(members))
        for members in sets
    ]


def _conflict(run: Run, other: Run) -> bool:
    """Whether two runs of one name and setting cannot be parts of one row: they differ in more than their records."""
    if run.settings["method"].get("_target_") != other.settings["method"].get("_target_"):
        return True
    names = {*run.datasets} & {*other.datasets}
    if names and (_timing(run) != _timing(other) or not agree(run, other)):
        return True
    one, another = (of.records[of.records["dataset"].isin(names)].set_index(_KEY)[_ANSWERS] for of in (run, other))
    shared = one.index.intersection(another.index)
    if not one.loc[shared].equals(another.loc[shared]):
        return True
    # Where as many records were asked for, they must be the same ones.
    alike = all(run.settings["data"].get(key) == other.settings["data"].get(key) for key in _WHICH_RECORDS)
    return alike and run.finished and other.finished and len(shared) < max(len(one), len(another))


def _timing(run: Run) -> dict[str, Any]:
    """How the run took its times; what is timed beside it is nothing to a baseline."""
    timing = run.settings.get("timing") or {}
    return {key: of for key, of in timing.items() if run.method != "baseline" or key not in ("paired", "keep_1")}
