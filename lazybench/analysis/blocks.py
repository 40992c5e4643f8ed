"""Group runs into blocks and rows, and choose the times that a block's speedups come from.

A block is all runs of one model on one data under the same conditions: its numbers compare. A row is one method with
one setting: a run, or several on different datasets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from lazybench.analysis import labels
from lazybench.analysis.averages import drop_failed, prefill_variation
from lazybench.analysis.labels import natural_order
from lazybench.analysis.records import COLUMNS, KEY, OWN, TIME_COLUMNS, TIME_TEXTS, TRIAL, Run
from lazybench.data.dataset_configs import CHINESE, DatasetConfig, datasets_of, task_names
from lazybench.errors import LazyBenchError
from lazybench.identity import class_name, comparable

# Runs of one row must agree on these in the records that they share.
_ANSWER = ["prediction", "score"]
_TRACED = ["first_token_kl", "kl"]
_LONGBENCH = {"longbench", "lazybench.data.minilongbench.read"}  # sources of its records
_IN_HEADING = {"weights_format", "dtype", "model.limit", "model.template", "generation_config"}


@dataclass(frozen=True)
class Row:
    """One method with one setting."""

    method: str
    title: str  # the method's
    setting: str
    runs: tuple[Run, ...]
    records: pd.DataFrame  # one line per record, with `COLUMNS`, `digest` of its run and, once chosen, `TIME_COLUMNS`
    name: str = ""  # in tables: its title, with its distinct settings if the block has several rows of the method
    hidden: str = ""  # the part of the setting that the name lacks
    origin: str = ""  # where a matched setting comes from

    @property
    def label(self) -> str:
        """Method and setting, e.g. `LazyLLM 10:0.7,20:0.5`."""
        return f"{self.title} {self.setting}".strip()

    @property
    def target(self) -> str:
        """The speedup for which `lazybench match` chose its settings, such as `2x`; empty if it did not."""
        method = self.runs[0].settings["method"]
        return method["speedup"] if "folds" in method else ""

    @cached_property
    def expected(self) -> dict[str, int]:
        """The number of records of each dataset that its runs cover once they are finished."""
        return {name: run.settings["records_of"].get(name, 0) for run in self.runs for name in run.datasets}

    @cached_property
    def datasets(self) -> set[str]:
        """The datasets whose every record was answered or failed, and not all of them failed."""
        counts, answered = self.records["dataset"].value_counts(), {*drop_failed(self.records)["dataset"]}
        return {name for name, count in self.expected.items() if name in answered and counts[name] >= count}

    def select(self, tasks: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """Return the records of tasks, which are given with their datasets, with their `task`, without failed ones."""
        task_of = {name: task for task, names in tasks.items() for name in names}
        records = self.records[self.records["dataset"].isin(task_of)]
        return drop_failed(records.assign(task=records["dataset"].map(task_of)))


@dataclass(frozen=True)
class Block:
    """All runs of one model on one data under the same conditions."""

    model: str
    data: str
    rows: tuple[Row, ...]  # in the order of the tables
    conditions: str  # in its heading
    stem: str  # in names of files
    times: str  # a sentence on where its speedups come from

    @cached_property
    def runs(self) -> list[Run]:
        """Its runs, row by row."""
        return [run for row in self.rows for run in row.runs]

    @cached_property
    def configs(self) -> dict[str, DatasetConfig]:
        """The configs of its datasets, and of all of LongBench's."""
        return {name: config for run in self.runs for name, config in run.configs.items()}

    @cached_property
    def records(self) -> pd.DataFrame:
        """The lines of the compact form: the records of its rows, with their names."""
        names = {"model": self.model, "data": self.data, "conditions": self.conditions}
        records = pd.concat(row.records.assign(**names, method=row.method, label=row.label) for row in self.rows)
        records["task"] = records["dataset"].map({name: config.task or "" for name, config in self.configs.items()})
        return records[[*names, "method", "label", "digest", "task", *COLUMNS, *TIME_COLUMNS]]

    @cached_property
    def compared(self) -> list[Row]:
        """The rows of tables: if LazyLLM has other schedules, those of a single stage are only in Figure 6."""
        num_stages = {row.label: len(labels.stages(row.runs[0])) for row in self.rows if row.method == "lazyllm"}
        several = any(number > 1 for number in num_stages.values())
        return [row for row in self.rows if not (several and num_stages.get(row.label) == 1)]

    @property
    def model_title(self) -> str:
        """Title of the model."""
        return labels.title_of(self.model, "model")

    @property
    def is_longbench(self) -> bool:
        """Whether its records are LongBench's, as the paper's are: all of them, or those of MiniLongBench."""
        return self.runs[0].settings["data"].get("source") in _LONGBENCH

    @property
    def title(self) -> str:
        """Titles of model and data."""
        data = self.runs[0].settings["data"]
        title = data.get("label") or labels.title_of(self.data, "data")
        generated = " (generated records, not LongBench)" if data.get("source") == "sample" else ""
        return f"{self.model_title} on {title}{generated}"

    def tasks(self, rows: Sequence[Row]) -> dict[str, list[str]]:
        """Return by task the datasets that at least half of the pruning rows finished.

        A dataset without a task counts as a task.
        """
        rows = pruned(rows) or rows
        shared = {name for name in self.configs if 2 * sum(name in row.datasets for row in rows) >= len(rows)}
        members = {task: datasets_of(task, self.configs) for task in task_names(self.configs)}
        members |= {name: [name] for name, config in self.configs.items() if config.task is None}
        tasks = {task: [name for name in names if name in shared] for task, names in members.items()}
        return {task: names for task, names in tasks.items() if names}

    def averaged(self, rows: Sequence[Row]) -> dict[str, list[str]]:
        """Return the tasks of the mean over tasks: all but Chinese and custom ones, unless there are no others."""
        tasks = self.tasks(rows)
        return {task: names for task, names in tasks.items() if task != CHINESE and names != [task]} or tasks

    def notes(self) -> list[str]:
        """Return at most five notes: times, missing numbers and settings."""
        shown = {name for names in self.tasks(self.compared).values() for name in names}
        missing, favoured, rare, settings = [], [], set(), {}
        for row in self.compared:
            lacking, failed = sorted(shown - row.datasets), len(row.records) - len(drop_failed(row.records))
            total = f"{len(row.records)} of {sum(row.expected.values())} records, without {', '.join(lacking)}"
            reasons = [total] * bool(lacking) + [f"{failed} failed"] * bool(failed)
            missing += [f"{row.name} ({'; '.join(reasons)})"] * bool(reasons)
            if row.hidden:
                setting = f"{row.name if row.target else row.title}: {row.hidden}"
                settings.setdefault(row.origin, {})[setting] = None  # a set in order
            favoured += [row.name] * any(run.settings.get("matched_on") for run in row.runs)
            rare |= row.datasets - shown if row.method != "baseline" else set()
        texts = {
            "": self.times,
            "Left out: ": ", ".join(missing),
            "In no table, as most methods lack them: ": ", ".join(sorted(rare)),
            "Settings: ": ". ".join("; ".join([*own, *filter(None, [origin])]) for origin, own in settings.items()),
            "Their settings were chosen on these records, which favours them: ": ", ".join(favoured),
        }
        return [f"{title}{text}" for title, text in texts.items() if text]


def pruned(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are not the unmodified model's."""
    return [row for row in rows if row.method != "baseline"]


def conditions(run: Run) -> dict[str, str]:
    """Return the values, as text by name, that comparable runs share if both have them."""
    values = comparable(run.settings, run.environment, {name: run.configs[name] for name in run.datasets})
    values["generation_config"] = run.environment.get("generation_config")
    digest, count = str(run.settings.get("records")), sum(run.settings["records_of"].values())
    values[f"records of {run.settings['task']}"] = f"{count} ({digest[:8]})"
    values[f"class of {run.method}"] = class_name(run.settings["method"])
    return {key: labels.short(str(None if value in ([], {}) else value)) for key, value in values.items()}


def group(runs: Sequence[Run], times: pd.DataFrame) -> list[Block]:
    """Group runs, and their times as `records.find` returns them, into blocks.

    Raises:
        LazyBenchError: two runs would be the same row, with different answers to a record.
    """
    members: list[tuple[tuple[str, str], list[Run], dict[str, str]]] = []  # model and data, runs, and their conditions
    for run in runs:
        name, own = (run.model, run.data), conditions(run)
        for other, block, shared in members:
            if other == name and all(shared.get(key, value) == value for key, value in own.items()):
                block.append(run)
                shared |= own
                break
        else:
            members.append((name, [run], own))
    blocks = []
    for name, block, own in members:
        siblings = [shared for other, _, shared in members if other == name]
        heading = _heading(block[0])
        known = {key: {shared[key] for shared in siblings if key in shared} for key in own}
        heading += [f"{key}={own[key]}" for key in own if len(known[key]) > 1 and key not in _IN_HEADING]
        stem = "_".join(name) + (f"_{number}" if (number := siblings.index(own) + 1) > 1 else "")
        rows = _timed(_rows(block), times[(times["model"] == name[0]) & (times["data"] == name[1])])
        blocks.append(Block(*name, rows, ", ".join(heading), stem, _sentence(rows)))
    return blocks


def _heading(run: Run) -> list[str]:
    """Return the conditions that every block's heading has."""
    environment, model = run.environment, run.settings["model"]
    parts = [environment.get("weights_format"), environment.get("dtype"), f"prompts up to {model['limit']:,} tokens"]
    settings = {"template": model.get("template"), "generation config": environment.get("generation_config")}
    parts += [f"{title} {labels.format_settings(values)}" for title, values in settings.items() if values]
    return [*dict.fromkeys(filter(None, parts))]


def _rows(runs: Sequence[Run]) -> list[Row]:
    """Make the rows of a block, in the order of tables."""
    titles = {run.method: labels.method_title(run) for run in runs}
    members: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        members.setdefault((run.method, labels.setting_of(run.method, run.settings["method"])), []).append(run)
    rows = []
    for (method, setting), own in members.items():
        title = titles[method] + f" ({method})" * ([*titles.values()].count(titles[method]) > 1)
        distinct = {run.digest: run for run in own}  # copies of a run count once
        rows.append(Row(method, title, setting, tuple(distinct.values()), _joined(f"{title} {setting}", own)))
    order = {name: position for position, name in enumerate(labels.METHODS)}

    def place(row: Row) -> tuple[Any, ...]:
        main = row.method.removesuffix(labels.NO_REVIVAL)
        return order.get(main, len(order)), main, row.method, row.target != "", natural_order(row.setting)

    rows.sort(key=place)
    named = []
    for row in rows:
        others = [other for other in rows if other.method == row.method and other is not row]
        parts = row.setting.split()
        own = [part for part in parts if others and not all(part in other.setting.split() for other in others)]
        hidden, origin = " ".join(part for part in parts if part not in own), ""
        if row.target:
            method = row.runs[0].settings["method"]
            own, (hidden, origin) = [method["speedup"]], labels.provenance(method)
        name = f"{row.title}, {' '.join(own)}" if own else row.title
        named.append(replace(row, name=name, hidden=hidden, origin=origin))
    return named


def _joined(label: str, runs: Sequence[Run]) -> pd.DataFrame:
    """Join the records of a row's runs: for each record the first line without an error, with the first trace."""
    records = pd.concat([run.records.assign(digest=run.digest, folder=run.folder) for run in runs])
    answered = drop_failed(records)
    different = answered.groupby(KEY)[_ANSWER].transform("nunique").gt(1).any(axis=1)
    if different.any():
        dataset, key = answered.loc[different, KEY].iloc[0]
        of_record = answered[(answered["dataset"] == dataset) & (answered["_id"] == key)]
        first, second = of_record.drop_duplicates(_ANSWER)["folder"].iloc[:2]
        raise LazyBenchError(
            f"{first} and {second} are both {label} under the same conditions, but answer record {key} of {dataset} "
            "differently: move one of them away"
        )
    records[_TRACED] = records.groupby(KEY)[_TRACED].transform("first")
    records = records.sort_values("error", key=lambda errors: errors != "", kind="stable").drop_duplicates(KEY)
    return records.sort_values(KEY).drop(columns="folder").reset_index(drop=True)


def _timed(rows: Sequence[Row], times: pd.DataFrame) -> tuple[Row, ...]:
    """Add times of one machine to the rows; `times` are all those of the block's model and data.

    They come from the timing run with the most rows, the newest of several, if it has more than half of the pruning
    rows; else from the runs themselves.
    """
    subjects = [[f"{run.method}/{run.digest}" for run in row.runs] for row in rows]
    chosen, best = times.head(0), (-1, "")
    ours = times["subject"].isin([name for names in subjects for name in names])
    for timing, lines in times[ours].groupby("timing"):
        pairs = zip(rows, subjects, strict=True)
        covered = sum(row.method != "baseline" and lines["subject"].isin(names).any() for row, names in pairs)
        rank = (0, "") if timing == OWN else (covered, lines["timed_date"].max())
        is_enough = timing == OWN or 2 * covered > len(pruned(rows))
        if is_enough and rank > best and len(lines[["timed_on", "threads"]].drop_duplicates()) == 1:
            chosen, best = lines, rank
    timed = []
    for row, names in zip(rows, subjects, strict=True):
        own = chosen[chosen["subject"].isin(names)]
        if row.method == "baseline":  # every line of times also has the unmodified model's
            own = chosen.assign(**{key: chosen[f"unmodified_{key}"] for key in TRIAL})
        records = row.records.merge(own.drop_duplicates(KEY)[[*KEY, *TIME_COLUMNS]], on=KEY, how="left")
        timed.append(replace(row, records=records.fillna(dict.fromkeys(TIME_TEXTS, ""))))
    return tuple(timed)


def _sentence(rows: Sequence[Row]) -> str:
    """Describe in a sentence where the times of rows come from."""
    timed = pd.concat([row.records for row in rows]).dropna(subset="ttft_s")
    if timed.empty:
        return "No speedups: nothing was timed, or on several machines. `lazybench time` times runs side by side."
    first, records = timed.iloc[0], timed.drop_duplicates(KEY)
    noisy, threads = int(timed.groupby(KEY)["noisy"].max().sum()), int(first["threads"])
    source = "each run's own" if first["timing"] == OWN else "one timing run"
    text = f"Times: {source} ({timed['timed_date'].max()[:10]}) on {first['timed_on']}, "
    text += f"{threads} thread{'s' * (threads > 1)}; {len(records)} records, {noisy} noisy"
    if (variation := prefill_variation(records)) is not None:
        text += f"; at equal length the unmodified first token varies by {variation:.1%}"
    untimed = [row.name for row in rows if row.records["ttft_s"].isna().all()]
    return text + (f"; not timed: {', '.join(untimed)}" if untimed else "") + "."
