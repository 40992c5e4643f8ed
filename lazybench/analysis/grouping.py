"""Groups runs into the rows of tables, and keeps apart what must not be compared.

A block is all runs of one model on one data. A row of it is one method with one setting: a run, or several on different
records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from lazybench.analysis.averages import drop_disturbed, drop_failed
from lazybench.analysis.labels import METHODS, is_calibrated, label, short, stages, strength_order, title_of
from lazybench.analysis.run_data import Run
from lazybench.data.facts import CHINESE, DatasetFacts, datasets_of, task_names
from lazybench.identity import class_name, comparable
from lazybench.store.journal import WALL_TIMES

KEY = ["dataset", "_id"]
_TRACED = ["first_token_kl", "kl"]
# Runs of one row must agree on these in the records that they share.
_ANSWERS = ["length", "prompt_tokens", "score", "prediction_digest", "error"]
_SUBSET = ("data.limit", "data.half")  # they choose among the same records: baselines may differ in them


@dataclass(frozen=True)
class Row:
    """One method with one setting under the same conditions."""

    method: str
    label: str  # method and setting, and the conditions in which it differs from most of the block's runs
    conditions: str  # the label's part about conditions
    runs: tuple[Run, ...]  # the one with most records first

    @property
    def label_without_conditions(self) -> str:
        """The label without the part about conditions."""
        return self.label.replace(f" [{self.conditions}]", "")

    @cached_property
    def records(self) -> pd.DataFrame:
        """One row a record, from the first run that has it, its divergences from the first run that traced it."""
        records = pd.concat([run.records for run in self.runs])
        records[_TRACED] = records.groupby(KEY)[_TRACED].transform("first")
        return records.drop_duplicates(KEY)

    @cached_property
    def expected(self) -> dict[str, int]:
        """How many records of each dataset it has once the run with most of them is finished."""
        counts: dict[str, int] = {}
        for run in self.runs:
            counts |= {name: max(counts.get(name, 0), run.expected(name)) for name in run.datasets}
        return counts

    def select(self, tasks: Mapping[str, Sequence[str]]) -> tuple[pd.DataFrame, list[str], str]:
        """Select the records of tasks, which are given with their datasets.

        Returns:
            The records with their `task`, including failed ones; the datasets that the row has a run of; and why the
            row has no numbers on the tasks, empty if it has.
        """
        expected = self.expected
        task_of = {name: task for task, names in tasks.items() for name in names if name in expected}
        records = self.records[self.records["dataset"].isin(task_of)]
        records = records.assign(task=records["dataset"].map(task_of))
        reasons = []
        for task, names in tasks.items():
            own = {name: expected[name] for name in names if name in expected}
            if reason := _missing(records[records["task"] == task], own):
                reasons.append(f"{task} {reason}" if len(tasks) > 1 else reason)
        return records, list(task_of), ", ".join(reasons)


def covering_most(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that cover as many `datasets` of their `task` as any line does: others do not compare."""
    return table[table["datasets"] == table.groupby("task")["datasets"].transform("max")]


def _missing(records: pd.DataFrame, expected: Mapping[str, int]) -> str:
    """Return why a task has no numbers, from its records and how many each dataset should have; empty if it has."""
    if not expected:
        return "no run"
    counts = records["dataset"].value_counts()
    if any(counts.get(name, 0) < number for name, number in expected.items()):
        return f"unfinished: {len(records)} of {sum(expected.values())}"
    complete = drop_failed(records)
    if set(expected) <= set(complete["dataset"]):
        return ""
    failed = len(records) - len(complete)
    return f"failed: {failed} of {len(records)}" if failed else "no records"


@dataclass(frozen=True)
class Block:
    """All runs of one model on one data."""

    model: str
    data: str
    rows: tuple[Row, ...]  # in the order of the tables
    differing: dict[str, dict[str, str]]  # of each condition that the runs do not share: label by value
    usual: dict[str, str]  # of these conditions: the value of more than half of the runs, which labels leave out

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

    @cached_property
    def floors(self) -> frozenset[str]:
        """The datasets on which every method scores 0 on every record, so that scores show nothing."""
        best = drop_failed(self.records).groupby("dataset")[["score", "baseline_score"]].max().max(axis=1)
        return frozenset(best[best == 0].index)

    @cached_property
    def compared(self) -> list[Row]:
        """The rows of tables: single-stage schedules of LazyLLM are only in Figure 6 if there are others."""
        num_stages = {row.label: len(stages(row.runs[0])) for row in self.rows if row.method == "lazyllm"}
        several = any(number > 1 for number in num_stages.values())
        return [row for row in self.rows if not (several and num_stages.get(row.label) == 1)]

    @property
    def pruned(self) -> list[Row]:
        """The rows of tables, without the unmodified model's."""
        return [row for row in self.compared if row.method != "baseline"]

    @property
    def title(self) -> str:
        """Titles of model and data."""
        return f"{self.model_title} on {self.data_title}"

    @property
    def model_title(self) -> str:
        """Title of the model, and the weights' format where all runs agree in it."""
        formats = {run.environment.get("weights_format") for run in self.runs} - {None}
        return title_of(self.model, "model") + (f" ({formats.pop()})" if len(formats) == 1 else "")

    @property
    def data_title(self) -> str:
        """Title of the data, and whether its records are generated."""
        data = pd.DataFrame([run.settings["data"] for run in self.runs]).reindex(columns=["label", "source"])
        data_titles = [*data["label"].dropna(), title_of(self.data, "data")]
        return data_titles[0] + (" (generated records, not LongBench)" if (data["source"] == "sample").any() else "")

    def numbered(self, condition: str, value: str) -> str:
        """Return a condition's value, after its number if labels number it: `device 2: NVIDIA A100-SXM4-40GB`."""
        name = self.differing.get(condition, {}).get(short(value))
        return value if name in (None, f"{condition}={value}") else f"{name}: {value}"

    def tasks(self) -> dict[str, list[str]]:
        """Return the data's datasets by task, of tasks with a run; a dataset without a task is its own."""
        facts = {name: fact for run in self.runs for name, fact in run.facts.items()}
        covered = {name for run in self.runs for name in run.datasets}
        available = covered.union(*(run.has for run in self.runs))
        members = {task: [name for name in datasets_of(task, facts) if name in available] for task in task_names(facts)}
        members |= {name: [name] for name, fact in facts.items() if fact.task is None}
        return {task: names for task, names in members.items() if covered & {*names}}

    def tasks_compared(self) -> dict[str, list[str]]:
        """Return the tasks that are compared together: all but the Chinese one, unless there is no other."""
        tasks = self.tasks()
        return {task: names for task, names in tasks.items() if task != CHINESE} or tasks


def conditions(run: Run) -> dict[str, str]:
    """Return the run's conditions by name, as text short enough for a label."""
    # Runs of earlier versions lack empty settings.
    return {key: short(str(None if value in ([], {}) else value)) for key, value in _comparable(run).items()}


def agree(run: Run, other: Run) -> bool:
    """Return whether two runs are equal in every value that must match and that both have."""
    first, second = (_comparable(each, {name: each.facts[name] for name in each.datasets}) for each in (run, other))
    return all(first[key] == second[key] for key in first.keys() & second.keys())


def with_difference(records: pd.DataFrame, row: Row, block: Block) -> pd.DataFrame:
    """Add `score_difference`: the score less the baseline's for the same record under the same conditions.

    The baseline's score is from its own run, or if that lacks the record, from the paired run.
    """
    baselines = [other for other in block.baselines if all(agree(one, run) for one in other.runs for run in row.runs)]
    known = pd.concat([records.head(0), *(drop_failed(other.records) for other in baselines)]).drop_duplicates(KEY)
    expected = known.set_index(KEY)["score"].reindex(pd.MultiIndex.from_frame(records[KEY])).set_axis(records.index)
    return records.assign(score_difference=records["score"] - expected.fillna(records["baseline_score"]))


def _comparable(run: Run, facts: Mapping[str, DatasetFacts] | None = None) -> dict[str, Any]:
    """Return the values that must match; a baseline, which is compared record by record, may choose other records."""
    values = comparable(run.settings, run.environment, facts)
    return {key: value for key, value in values.items() if run.method != "baseline" or key not in _SUBSET}


def group(runs: Sequence[Run]) -> list[Block]:
    """Group runs into a block for each model and data."""
    runs = [_with_keep_1(run, [other for other in runs if other.method == "baseline"]) for run in runs]
    names = sorted({(run.model, run.data) for run in runs})
    return [_block([run for run in runs if (run.model, run.data) == name]) for name in names]


def _with_keep_1(run: Run, baselines: Sequence[Run]) -> Run:
    """Fill a run's missing times of the engine with nothing pruned, record by record.

    A baseline's run times that engine beside itself. The ratio of both times scales the unmodified model's in this run.
    """
    for baseline in baselines if run.environment.get("on_engine") else ():
        if (baseline.model, baseline.data) != (run.model, run.data) or not agree(run, baseline):
            continue
        unpruned = drop_disturbed(baseline.records).set_index(KEY)
        unpruned = unpruned.reindex(pd.MultiIndex.from_frame(run.records[KEY])).set_axis(run.records.index)
        for time in WALL_TIMES:
            estimated = run.records[f"baseline_{time}"] * unpruned[f"keep_1_{time}"] / unpruned[time]
            filled = run.records[f"keep_1_{time}"].fillna(estimated)
            run = replace(run, records=run.records.assign(**{f"keep_1_{time}": filled}))
    return run


def _block(runs: list[Run]) -> Block:
    table = pd.DataFrame([conditions(run) for run in runs], dtype=object)
    counts = {key: table[key].value_counts() for key in table if table[key].nunique() > 1}
    differing = {
        key: {value: _value_label(key, value, number) for number, value in enumerate(sorted(values.index), start=1)}
        for key, values in counts.items()
    }
    usual = {key: values.index[0] for key, values in counts.items() if 2 * values.iloc[0] > len(runs)}
    # Finished runs, and those that cover most, come first.
    runs = sorted(runs, key=lambda run: (not run.finished, -len(run.datasets), -len(run.records), run.name))
    groups: dict[tuple[str, str], list[list[Run]]] = {}  # rows by label and conditions
    for run in runs:
        values = conditions(run)
        marked = [key for key in differing if key in values and values[key] != usual.get(key)]
        condition = ", ".join(differing[key][values[key]] for key in marked)
        members = groups.setdefault((label(run), condition), [])
        for row in members:
            if not any(_conflict(run, other) for other in row):
                row.append(run)
                break
        else:
            members.append([run])
    rows = []
    for (name, condition), members in groups.items():
        text = f"{name} [{condition}]" if condition else name
        for row in members:
            unique = text if len(members) == 1 else f"{text} #{row[0].digest}"
            rows.append(Row(row[0].method, unique, condition, tuple(row)))
    order = {name: position for position, name in enumerate(METHODS)}

    def place(row: Row) -> list[Any]:
        return [order.get(row.method, len(order)), row.method, is_calibrated(row.runs[0]), *strength_order(row.label)]

    rows.sort(key=place)
    return Block(runs[0].model, runs[0].data, tuple(rows), differing, usual)


def _value_label(condition: str, value: str, number: int) -> str:
    """Return what labels call a condition's value: `dtype=float32`; devices, which have long names, are numbered."""
    return f"device {number}" if condition == "device" else f"{condition}={value}"


def _conflict(run: Run, other: Run) -> bool:
    """Return whether two runs of one label differ in more than their records, so that they cannot be one row."""
    if run.method != other.method or class_name(run.settings["method"]) != class_name(other.settings["method"]):
        return True
    shared = {*run.datasets} & {*other.datasets}
    if not shared:
        return False
    first, second = (
        each.records[each.records["dataset"].isin(shared)].set_index(KEY)[_ANSWERS] for each in (run, other)
    )
    both = first.index.intersection(second.index)
    if not (agree(run, other) and first.loc[both].equals(second.loc[both])):
        return True
    # Where the settings choose the same records, finished runs must have the same.
    same_subset = all(run.settings["data"].get(key) == other.settings["data"].get(key) for key in ("limit", "half"))
    return same_subset and run.finished and other.finished and len(both) < max(len(first), len(second))
