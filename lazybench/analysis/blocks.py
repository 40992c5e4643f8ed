"""Group runs into blocks and rows, and choose the times that a block's speedups come from.

A block is all runs of one model on one data under the same conditions: its numbers compare. A row is one method with one
setting: a run, or several on different datasets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from lazybench.analysis.averages import drop_failed, prefill_variation
from lazybench.analysis.labels import (
    METHODS,
    format_settings,
    is_calibrated,
    method_title,
    provenance,
    setting_of,
    short,
    stages,
    strength_order,
    title_of,
)
from lazybench.analysis.records import COLUMNS, INTEGERS, KEY, OWN, TIME_COLUMNS, UNMODIFIED, Run
from lazybench.data.facts import CHINESE, DatasetFacts, datasets_of, task_names
from lazybench.errors import LazyBenchError
from lazybench.identity import class_name, comparable

# Runs of one row must agree on these in the records that they share.
_ANSWER = ["prediction", "score"]
_TRACED = ["first_token_kl", "kl"]
_IN_HEADING = {"weights_format", "dtype", "model.limit", "model.template", "generation_config"}
_UNTIMED = pd.DataFrame(columns=[*KEY, *TIME_COLUMNS]).astype(dict.fromkeys(set(TIME_COLUMNS) & {*INTEGERS}, float))


@dataclass(frozen=True)
class Row:
    """One method with one setting."""

    method: str
    title: str  # the method's
    setting: str
    runs: tuple[Run, ...]  # empty for unmodified answers that come from other rows
    records: pd.DataFrame  # one line per record, with `COLUMNS`, `digest` of its run and, once chosen, `TIME_COLUMNS`
    name: str = ""  # in tables: its title, with the setting if the block has several rows of the method
    line: str = ""  # in figures, of all strengths of a method

    @property
    def label(self) -> str:
        """Method and setting, e.g. `LazyLLM 10:0.7,20:0.5`."""
        return f"{self.title} {self.setting}".strip()

    @cached_property
    def datasets(self) -> list[str]:
        """The datasets of which every record was answered or failed, and not all of them failed."""
        counts, answered = self.records["dataset"].value_counts(), {*drop_failed(self.records)["dataset"]}
        return [name for name in counts.index if name in answered and counts[name] >= self._expected(name)]

    def select(self, tasks: Mapping[str, Sequence[str]]) -> tuple[pd.DataFrame, str]:
        """Return the records of tasks, which are given with their datasets, and why the row has no numbers on them.

        The records have their `task`; failed ones are left out. The reason is empty if the row has numbers.
        """
        task_of = {name: task for task, names in tasks.items() for name in names}
        records = self.records[self.records["dataset"].isin(task_of)]
        answered = drop_failed(records.assign(task=records["dataset"].map(task_of)))
        lacking = [name for name in task_of if name not in self.datasets]
        if not lacking:
            return answered, ""
        expected = sum(map(self._expected, task_of))
        if len(records) < expected:
            return answered, f"unfinished: {len(records)} of {expected} records"
        failed = [name for name in lacking if name in {*records["dataset"]}]
        return answered, f"all records of {failed[0]} failed" if failed else f"no run of {', '.join(lacking)}"

    def _expected(self, dataset: str) -> int:
        return max((run.expected(dataset) for run in self.runs if dataset in run.datasets), default=0)


@dataclass(frozen=True)
class Block:
    """All runs of one model on one data under the same conditions."""

    model: str
    data: str
    rows: tuple[Row, ...]  # in the order of the tables
    conditions: str  # in its heading
    stem: str  # in names of files
    times: str = ""  # says in a sentence where its speedups come from

    @cached_property
    def runs(self) -> list[Run]:
        """Its runs, row by row."""
        return [run for row in self.rows for run in row.runs]

    @cached_property
    def facts(self) -> dict[str, DatasetFacts]:
        """The facts of its datasets, and of all of LongBench's."""
        return {name: fact for run in self.runs for name, fact in run.facts.items()}

    @cached_property
    def records(self) -> pd.DataFrame:
        """The lines of the compact form: all that its rows have from runs, with the names of the rows."""
        names = {"model": self.model, "data": self.data, "conditions": self.conditions}
        parts = [
            row.records.assign(**names, method=row.method, label=row.label, digest=row.records["digest"])
            for row in self.rows
            if row.runs
        ]
        records = pd.concat(parts)
        task_of = {name: fact.task for name, fact in self.facts.items()}
        records["task"] = records["dataset"].map(task_of).fillna("")
        return records[[*names, "method", "label", "digest", "task", *COLUMNS, *TIME_COLUMNS]]

    @property
    def pruned(self) -> list[Row]:
        """The rows that prune."""
        return [row for row in self.rows if row.method != "baseline"]

    @cached_property
    def compared(self) -> list[Row]:
        """The rows of tables: single-stage schedules of LazyLLM are only in Figure 6 if there are others."""
        num_stages = {row.label: len(stages(row.runs[0])) for row in self.rows if row.method == "lazyllm"}
        several = any(number > 1 for number in num_stages.values())
        return [row for row in self.rows if not (several and num_stages.get(row.label) == 1)]

    @cached_property
    def floors(self) -> list[str]:
        """The datasets on which every row scores 0 on every record, so that scores show nothing."""
        best = drop_failed(self.records).groupby("dataset")[["score", "unmodified_score"]].max().max(axis=1)
        return sorted(best[best == 0].index)

    @property
    def model_title(self) -> str:
        """Title of the model."""
        return title_of(self.model, "model")

    @property
    def title(self) -> str:
        """Titles of model and data."""
        data = self.runs[0].settings["data"]
        title = data.get("label") or title_of(self.data, "data")
        generated = " (generated records, not LongBench)" if data.get("source") == "sample" else ""
        return f"{self.model_title} on {title}{generated}"

    def tasks(self, rows: Sequence[Row]) -> dict[str, list[str]]:
        """Return by task the datasets that at least half of those rows have that have any of the task.

        The unmodified model's rows do not count if there are others. A dataset without a task is its own.
        """
        rows = [row for row in rows if row.method != "baseline"] or rows
        members = {task: datasets_of(task, self.facts) for task in task_names(self.facts)}
        members |= {name: [name] for name, fact in self.facts.items() if fact.task is None}
        tasks = {}
        for task, names in members.items():
            having = [row for row in rows if {*names} & {*row.datasets}]
            counts = {name: sum(name in row.datasets for row in having) for name in names}
            tasks[task] = [name for name, count in counts.items() if 0 < len(having) <= 2 * count]
        return {task: names for task, names in tasks.items() if names}

    def averaged(self, rows: Sequence[Row]) -> dict[str, list[str]]:
        """Return the tasks of the mean over tasks: of those of `tasks` that at least half of the rows have.

        The Chinese task is not among them, unless it is the only one; nor are datasets without a task.
        """
        pruned = [row for row in rows if row.method != "baseline"] or rows
        tasks = {
            task: names
            for task, names in self.tasks(rows).items()
            if names != [task] and 2 * sum({*names} <= {*row.datasets} for row in pruned) >= len(pruned)
        }
        return {task: names for task, names in tasks.items() if task != CHINESE} or tasks

    def notes(self) -> list[str]:
        """Return at most five notes: the times, missing numbers, settings, their source, and floors."""
        missing = []
        for row in self.compared:
            reasons = [row.select({task: names})[1] for task, names in self.tasks(self.compared).items()]
            reasons = [*dict.fromkeys(filter(None, reasons))]
            failed = len(row.records) - len(drop_failed(row.records))
            reasons += [f"{failed} of {len(row.records)} records failed"] * bool(failed)
            missing += [f"{row.name} ({'; '.join(reasons)})"] * bool(reasons)
        calibrated = {row.name: row.runs[0] for row in self.compared if row.runs and is_calibrated(row.runs[0])}
        settings = [
            f"{row.name}: {row.setting}" for row in self.compared if row.setting and row.setting not in row.name
        ]
        settings = [text for text in settings if text.partition(":")[0] not in calibrated]
        sources: dict[str, list[str]] = {}
        for name, run in calibrated.items():
            found, source = provenance(run.settings["method"])
            sources.setdefault(source, []).append(f"{name}: {found}")
        matched = "; ".join(f"{'; '.join(rows)} {source}".rstrip() for source, rows in sources.items())
        flattered = [name for name, run in calibrated.items() if run.calibrated_on]
        matched += f"; on these records, which favours: {', '.join(flattered)}" * bool(flattered)
        texts = {
            "": self.times,
            "Left out: ": ", ".join(missing),
            "Settings: ": "; ".join(settings),
            "Matched settings: ": matched,
            "Every method scores 0 on every record of ": ", ".join(self.floors),
        }
        return [f"{title}{text}" for title, text in texts.items() if text]


def conditions(run: Run) -> dict[str, str]:
    """Return what must be equal in runs that compare, by name, as text: of those that both have."""
    values = comparable(run.settings, run.environment, {name: run.facts[name] for name in run.datasets})
    values["generation_config"] = run.environment.get("generation_config")
    values[f"records of {run.settings['task']}"] = run.settings.get("records")
    values[f"class of {run.method}"] = class_name(run.settings["method"])
    return {key: short(str(None if value in ([], {}) else value)) for key, value in values.items()}


def group(runs: Sequence[Run], times: pd.DataFrame) -> list[Block]:
    """Group runs, and their times as `records.find` returns them, into blocks.

    Raises:
        LazyBenchError: two runs would be the same row, with different answers to a record.
    """
    members: list[tuple[tuple[str, str], list[Run], dict[str, str]]] = []  # model and data, runs and their conditions
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
        known = {key: {shared[key] for shared in siblings if key in shared} for key in own}
        differing = [key for key, values in known.items() if len(values) > 1 and key not in _IN_HEADING]
        heading = [*_heading(block[0]), *(f"{key}={own[key]}" for key in differing)]
        number = siblings.index(own) + 1
        stem = "_".join(name) + f"_{number}" * (len(siblings) > 1)
        here = times[(times["model"] == name[0]) & (times["data"] == name[1])]
        rows, chosen = _timed(_rows(block), here)
        blocks.append(Block(*name, rows, ", ".join(heading), stem, chosen))
    return blocks


def _heading(run: Run) -> list[str]:
    """Return the conditions that every block's heading has."""
    environment, model = run.environment, run.settings["model"]
    parts = [environment.get("weights_format"), environment.get("dtype"), f"prompts up to {model['limit']:,} tokens"]
    settings = {"template": model.get("template"), "generation config": environment.get("generation_config")}
    parts += [f"{title} {format_settings(values)}" for title, values in settings.items() if values]
    return [*filter(None, parts)]


def _rows(runs: Sequence[Run]) -> list[Row]:
    """Make the rows of a block, in the order of tables."""
    members: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        key = (run.method, method_title(run), setting_of(run.method, run.settings["method"]))
        members.setdefault(key, []).append(run)
    rows = [Row(*key, tuple(own), _joined(" ".join(key[1:]), own)) for key, own in members.items()]
    if not any(row.method == "baseline" for row in rows):
        rows.append(_unmodified(max(rows, key=lambda row: len(drop_failed(row.records)))))
    order = {name: position for position, name in enumerate(METHODS)}

    def place(row: Row) -> list[Any]:
        calibrated = bool(row.runs) and is_calibrated(row.runs[0])
        return [order.get(row.method, len(order)), row.method, calibrated, *strength_order(row.setting)]

    rows.sort(key=place)
    named = []
    for row in rows:
        others = [other for other in rows if other.method == row.method and other is not row]
        calibrated = bool(row.runs) and is_calibrated(row.runs[0])
        setting = row.setting.removeprefix("calibrated for ")
        name = f"{row.title}, {setting}" if setting and (others or calibrated) else row.title
        mixed = calibrated and not all(is_calibrated(other.runs[0]) for other in others)
        named.append(replace(row, name=name, line=f"{row.title}, matched" if mixed else row.title))
    return named


def _joined(label: str, runs: Sequence[Run]) -> pd.DataFrame:
    """Join the records of runs of one row: of each the first that did not fail, with the first trace."""
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
    failed_last = records.sort_values("error", key=lambda errors: errors != "", kind="stable")
    return failed_last.drop_duplicates(KEY).sort_values(KEY).drop(columns="folder").reset_index(drop=True)


def _unmodified(row: Row) -> Row:
    """Make the unmodified model's row from the answers beside those of another row."""
    records = drop_failed(row.records[row.records["dataset"].isin(row.datasets)]).copy()
    for key in ("score", "new_tokens", "prediction"):
        records[key] = records[f"unmodified_{key}"]
    records[["prompt_computed", "identical_tokens", "identical_answer"]] = 1.0
    records[[*_TRACED, "reached_limit"]] = float("nan")
    records["score_by_seed"] = ""
    return Row("baseline", title_of("baseline"), "", (), records)


def _timed(rows: Sequence[Row], times: pd.DataFrame) -> tuple[tuple[Row, ...], str]:
    """Choose the times of a block from those of its model and data.

    Returns:
        The rows with their times, and what they are as a sentence. They come from the newest of the timing runs that
        time most rows, if that is more than half of those that prune; else from the runs themselves, if one machine
        took all of them.
    """
    rows, chosen, best = list(rows), pd.DataFrame(), (0, "")
    for timing, lines in times.groupby("timing"):
        own = [lines[lines["subject"].isin(_subjects(row, timing))] for row in rows]
        covered = sum(len(part) > 0 for row, part in zip(rows, own, strict=True) if row.method != "baseline")
        part = pd.concat(own).drop_duplicates()
        is_one_machine = len(part[["timed_on", "threads"]].drop_duplicates()) == 1
        rank = (0, "") if timing == OWN else (covered, part["timed_date"].max() if len(part) else "")
        enough = timing == OWN or 2 * covered > sum(row.method != "baseline" for row in rows)
        if is_one_machine and enough and (chosen.empty or rank > best):
            chosen, best = part, rank
    ready = []
    for row in rows:
        if chosen.empty:
            own_times = _UNTIMED
        elif row.runs:
            own_times = chosen[chosen["subject"].isin(_subjects(row, chosen["timing"].iloc[0]))]
        else:
            own_times = _times_of_unmodified(chosen)
        own_times = own_times.drop_duplicates(KEY)[[*KEY, *TIME_COLUMNS]]
        records = row.records.merge(own_times, on=KEY, how="left")
        texts = [key for key in TIME_COLUMNS if records[key].dtype == object]
        records[texts] = records[texts].fillna("")
        ready.append(replace(row, records=records))
    return tuple(ready), _sentence(ready, times)


def _subjects(row: Row, timing: str) -> list[str]:
    """Return the names of a row in times: of the runs themselves, or of a timing run."""
    names = [f"{run.method}/{run.digest}" for run in row.runs]
    return names if row.method != "baseline" or timing == OWN else [UNMODIFIED]


def _times_of_unmodified(times: pd.DataFrame) -> pd.DataFrame:
    """Return the unmodified model's times, which stand beside those of any row."""
    own = {key: times[f"unmodified_{key}"] for key in ("ttft_s", "generation_s", "decode_step_s", "timed_tokens")}
    return times.assign(**own)


def _sentence(rows: Sequence[Row], times: pd.DataFrame) -> str:
    """Say which times the rows have; `times` are all of the block's model and data."""
    timed = pd.concat([row.records for row in rows]).dropna(subset="ttft_s")
    if timed.empty:
        machines = sorted({*times["timed_on"]})
        several = f": the runs were timed on {', '.join(machines)}, and `lazybench time` times them side by side"
        return "No speedups" + (several if machines else ": nothing was timed") + "."
    first, records = timed.iloc[0], timed.drop_duplicates(KEY)
    noisy, threads = int(timed.groupby(KEY)["noisy"].max().sum()), int(first["threads"])
    source = "each run's own" if first["timing"] == OWN else "one timing run"
    text = f"Times: {source} ({timed['timed_date'].max()[:10]}) on {first['timed_on']}, "
    text += f"{threads} thread{'s' * (threads > 1)}; {len(records)} records, {noisy} noisy"
    if (variation := prefill_variation(records)) is not None:
        text += f"; at equal length the unmodified first token varies by {variation:.1%}"
    untimed = [row.name for row in rows if row.records["ttft_s"].isna().all()]
    return text + (f"; not timed: {', '.join(untimed)}" if untimed else "") + "."
