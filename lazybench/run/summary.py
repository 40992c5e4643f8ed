"""Average a run's records, or a timing run's, and format the numbers that `run` and `time` print."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import MEAN, SCORE
from lazybench.analysis.console import table
from lazybench.analysis.records import KEY, answers_table, times_table
from lazybench.data import DatasetConfig
from lazybench.methods.lazyllm import PAPER, PLUS

_SPEEDUPS = (averages.TTFT, averages.ANSWER, averages.DECODE_STEP, averages.OVER_NOTHING_PRUNED)
_AVERAGED = (SCORE, averages.UNMODIFIED_SCORE, *_SPEEDUPS, replace(averages.COMPUTED, scale=1))
_TITLES = {"first token": averages.TTFT, "whole answer": averages.ANSWER, "decode step": averages.DECODE_STEP}
_MEANING = "first token, whole answer and decode step are speedups over the unmodified model: above 1x is faster"


def summarise(
    rows: Iterable[Mapping[str, Any]],
    configs: Mapping[str, DatasetConfig],
    times: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Average the scores and speedups of a run as in a report's tables.

    Args:
        rows: the run's lines of predictions.
        configs: configs by dataset.
        times: the run's own lines of times.

    Returns:
        `datasets` and `tasks`, each by name, and `mean_of_tasks`, None for a single task. A task is the mean over its
        datasets. Each has

        - `score` and `unmodified_score` (0 to 100), `score_by_group`, and `score_by_seed` if there are several seeds;
        - `prompt_computed` (1 is the whole prompt once);
        - `ttft_speedup`, `ttft_speedup_over_nothing_pruned`, `decode_step_speedup`, and `answer_speedup` (of the whole
          answer at equal length), None if nothing was timed;
        - the number of `records` and, among them, of `same_answers` (as the unmodified model's) and `at_limit`
          (reached `max_new_tokens`), means over seeds, `timed` and `noisy`; `failed` records are not among them.
    """
    records = answers_table(rows).merge(times_table(times), on=KEY, how="left")
    by_dataset = dict(iter(records.groupby("dataset")))
    by_dataset = {name: by_dataset[name] for name in configs if name in by_dataset}
    by_task = {}
    for task in filter(None, dict.fromkeys(configs[name].task for name in by_dataset)):
        parts = [part for name, part in by_dataset.items() if configs[name].task == task]
        by_task[task] = pd.concat(parts).assign(task=task)
    groups = list(dict.fromkeys(group for name in by_dataset for group in configs[name].groups))
    return {
        "datasets": {name: _numbers(part.assign(task=name), configs[name].groups) for name, part in by_dataset.items()},
        "tasks": {task: _numbers(part, groups) for task, part in by_task.items()},
        MEAN: _numbers(pd.concat(by_task.values()), groups) if len(by_task) > 1 else None,
    }


def _numbers(records: pd.DataFrame, groups: Sequence[str]) -> dict[str, Any]:
    """Average records, which have their `task`, over tasks of the means over their datasets."""
    answered = averages.drop_failed(records)
    results = {}
    if set(answered["dataset"]) == set(records["dataset"]):  # no mean if all records of a dataset failed
        measures = (*_AVERAGED, *map(averages.group_measure, groups))
        results = {measure.key: averages.average(answered, measure) for measure in measures}
    values = {key: result.value for key, result in results.items()}
    return {
        **{measure.key: values.get(measure.key) for measure in _AVERAGED},
        "score_by_group": {group: values.get(f"score_in_{group}") for group in groups},
        "score_by_seed": list(results["score"].seeds) or None if results else None,
        "records": len(answered),
        "same_answers": float(answered["identical_answer"].sum()),
        "failed": len(records) - len(answered),
        "at_limit": float(answered["reached_limit"].sum()),
        "timed": int(answered["ttft_s"].notna().sum()),
        "noisy": int(answered["noisy"].sum()),
    }


def scores_table(scores: Mapping[str, Any]) -> str:
    """Format scores, speedups and counts: a line per dataset, per task and for the mean over tasks.

    The score of a method with several seeds is followed by the standard deviation over them. Columns without any number
    are left out.
    """
    named = dict(scores["datasets"])
    # The task of a single dataset would repeat its numbers.
    several = {task: numbers for task, numbers in scores["tasks"].items() if numbers not in scores["datasets"].values()}
    named |= {f"{task}, mean": numbers for task, numbers in several.items()}
    if scores[MEAN] is not None:
        named[f"mean of {len(scores['tasks'])} tasks"] = scores[MEAN]
    every = [*named.values()]
    cells = {"records": [str(numbers["records"]) for numbers in every], "score": [_score(numbers) for numbers in every]}
    for group in dict.fromkeys(group for numbers in every for group in numbers["score_by_group"]):
        cells[group] = [_text(numbers["score_by_group"].get(group), "{:.2f}") for numbers in every]
    cells["unmodified"] = [_text(numbers["unmodified_score"], "{:.2f}") for numbers in every]
    cells["same answers"] = [f"{_count(numbers['same_answers'])} of {numbers['records']}" for numbers in every]
    for title, measure in _TITLES.items():
        cells[title] = [_text(numbers[measure.key], "{:.2f}x") for numbers in every]
    cells["% computed"] = [_text(numbers["prompt_computed"], "{:.2%}").removesuffix("%") for numbers in every]
    for title, key in {"failed": "failed", "at limit": "at_limit", "timed": "timed", "noisy": "noisy"}.items():
        cells[title] = [_count(numbers[key]) for numbers in every]
    shown = {key: column for key, column in cells.items() if key in ("records", "score") or set(column) - {"-", "0"}}
    return table(["", *shown], list(zip(named, *shown.values(), strict=True)))


def explanations(scores: Mapping[str, Any], method: str) -> list[str]:
    """Return lines that explain a run's numbers, and slower decode steps if there are any."""
    by_dataset = scores["datasets"].values()
    if all(numbers["ttft_speedup"] is None for numbers in by_dataset):
        return []
    lines = [f"scores are out of 100; {_MEANING}"]
    if method in (PAPER, PLUS) and any((numbers["decode_step_speedup"] or 1) < 1 for numbers in by_dataset):
        lines.append("decode steps are slower: steps that rank tokens also compute those that they revive")
    return lines


def times_summary(
    times: Collection[Mapping[str, Any]], labels: Mapping[str, str], configs: Mapping[str, DatasetConfig]
) -> str:
    """Format the speedups of a timing run, a line per timed run, and a line on its noise.

    Args:
        times: the timing run's lines.
        labels: labels of the timed runs, by their names in `times`.
        configs: configs by dataset.
    """
    records = times_table(times)
    # A dataset without a task counts as a task.
    records["task"] = records["dataset"].map(lambda name: configs[name].task or name)
    measures = _TITLES | {"over nothing pruned": averages.OVER_NOTHING_PRUNED}
    lines = []
    for name, label in labels.items():
        own = records[records["subject"] == name]
        values = [averages.average(own, measure).value for measure in measures.values()]
        lines.append([label, str(len(own)), *(_text(value, "{:.2f}x") for value in values)])
    timed = records.drop_duplicates(KEY).merge(pd.DataFrame(times)[[*KEY, "prompt_tokens"]], on=KEY)
    noise = f"{len(timed)} records timed, {int(timed['noisy'].sum())} noisy"
    if (variation := averages.prefill_variation(timed)) is not None:
        noise += f"; at equal length the unmodified model's first token varies by {variation:.1%}"
    return "\n".join([table(["", "records", *measures], lines), "", noise, _MEANING])


def _score(numbers: Mapping[str, Any]) -> str:
    seeds = numbers["score_by_seed"]
    return _text(numbers["score"], "{:.2f}") + (f" ± {stdev(seeds):.2f}" if seeds else "")


def _count(number: float) -> str:
    return f"{round(number, 1):g}"


def error_kind(error: str) -> str:
    """Return an error without its numbers, such as a prompt's length."""
    return re.sub(r"\d+", "N", error)


def failures(rows: Collection[Mapping[str, Any]]) -> list[str]:
    """Return a line per kind of failure: the number of records, and the first record's error."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if error := row.get("error"):
            reasons.setdefault(error_kind(error), []).append(error)
    return [f"failed: {len(errors)} of {len(rows)} records: {errors[0]}" for errors in reasons.values()]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
