"""Average a run's records by dataset and task, and format the numbers that it prints."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import MEAN, SCORE
from lazybench.analysis.console import table
from lazybench.analysis.run_data import records_table, row_of
from lazybench.data import DatasetFacts
from lazybench.methods.lazyllm import PAPER, PLUS

_TIMES = (*averages.TTFT, *averages.GENERATION, averages.EQUAL_LENGTH, *averages.DECODE_STEP)
_AVERAGED = (SCORE, averages.BASELINE_SCORE, *_TIMES, replace(averages.COMPUTED, scale=1))
# Of the engine with nothing pruned the terminal shows the first token alone; a report's tables have all of it.
_SPEEDUPS = {
    "first token": "ttft_speedup",
    "over keep 1": "ttft_speedup_over_keep_1",
    "whole answer": "generation_speedup",
    "at equal length": "generation_speedup_equal_length",
    "decode step": "decode_step_speedup",
}


def summarise(rows: Iterable[Mapping[str, Any]], facts: Mapping[str, DatasetFacts]) -> dict[str, Any]:
    """Average the scores and speedups of a run as in a report's tables.

    Args:
        rows: the run's records.
        facts: facts by dataset.

    Returns:
        `datasets` and `tasks`, each by name, and `mean_of_tasks`, which is None for a single task. Each has
        `score` and, of the unmodified model in a paired run, `baseline_score` (0 to 100), `same_answers` of `compared`
        (records whose answer is the unmodified model's, a mean over seeds; and all records with its answer), `records`,
        `failed` (records the method could not run, left out of the rest), `disturbed` (records with a pass that other
        work on the machine disturbed, left out of speedups), `prompt_computed` (1 is the whole prompt once),
        `score_by_seed` (the score of each seed of a method that has several, else None), `score_by_group` (the score of
        the records in each group, None where a dataset has none; empty for datasets without groups), and speedups:
        `ttft_speedup`, `generation_speedup` and `decode_step_speedup` over the unmodified model, each also
        `..._over_keep_1`, over the method's own engine with nothing pruned, and `generation_speedup_equal_length`. A
        dataset's speedup is the mean of that time over the mean of the method's on the same records; None without such
        times. A task's values are the mean over its datasets, and `mean_of_tasks` is the mean over the tasks.
    """
    records = records_table(map(row_of, rows))
    by_dataset = dict(iter(records.groupby("dataset")))
    by_dataset = {name: by_dataset[name] for name in facts if name in by_dataset}
    by_task = {}
    for task in filter(None, dict.fromkeys(facts[name].task for name in by_dataset)):
        parts = [part for name, part in by_dataset.items() if facts[name].task == task]
        by_task[task] = pd.concat(parts).assign(task=task)
    groups = list(dict.fromkeys(group for name in by_dataset for group in facts[name].groups))
    return {
        "datasets": {name: _numbers(part.assign(task=name), facts[name].groups) for name, part in by_dataset.items()},
        "tasks": {task: _numbers(part, groups) for task, part in by_task.items()},
        MEAN: _numbers(pd.concat(by_task.values()), groups) if len(by_task) > 1 else None,
    }


def _numbers(records: pd.DataFrame, groups: Sequence[str]) -> dict[str, Any]:
    """Average records, which have their `task`, over tasks of the means over their datasets."""
    answered = averages.drop_failed(records)
    results = {}
    if set(answered["dataset"]) == set(records["dataset"]):  # no mean leaves out a dataset that failed altogether
        measures = (*_AVERAGED, *map(averages.group_measure, groups))
        results = {measure.key: averages.average(answered, measure) for measure in measures}
    values = {key: result.value for key, result in results.items()}
    if results and results["baseline_score"].records < len(answered):
        values["baseline_score"] = None  # a mean over fewer records would not compare
    return {
        **{measure.key: values.get(measure.key) for measure in _AVERAGED},
        "score_by_group": {group: values.get(f"score_in_{group}") for group in groups},
        "score_by_seed": list(results["score"].seeds) or None if results else None,
        "records": len(answered),
        "same_answers": float(answered["identical_answer"].sum()),
        "compared": int(answered["identical_answer"].notna().sum()),
        "failed": len(records) - len(answered),
        "disturbed": len(answered) - len(averages.drop_disturbed(answered)),
    }


def scores_table(scores: Mapping[str, Any]) -> str:
    """Format scores and speedups by dataset, task and over the tasks, with counts of what failed or was disturbed.

    After the score of a method with several seeds stands the standard deviation over them. Columns that have no
    number in any row are left out. A speedup above 1 is faster.
    """
    named = dict(scores["datasets"])
    # The task of a single dataset would repeat its numbers.
    several = {task: numbers for task, numbers in scores["tasks"].items() if numbers not in scores["datasets"].values()}
    named |= {f"{task}, mean": numbers for task, numbers in several.items()}
    if scores[MEAN] is not None:
        named[f"mean of {len(scores['tasks'])} tasks"] = scores[MEAN]
    every = [*named.values()]
    cells = {"records": [str(numbers["records"]) for numbers in every], "score": [_score(numbers) for numbers in every]}
    # Runs of earlier versions lack groups, answers and the unmodified model's score.
    by_group = [numbers.get("score_by_group") or {} for numbers in every]
    for group in dict.fromkeys(group for groups in by_group for group in groups):
        cells[group] = [_text(groups.get(group), "{:.2f}") for groups in by_group]
    cells["unmodified"] = [_text(numbers.get("baseline_score"), "{:.2f}") for numbers in every]
    cells["same answers"] = [_same_answers(numbers) for numbers in every]
    cells |= {title: [_text(numbers.get(key), "{:.2f}x") for numbers in every] for title, key in _SPEEDUPS.items()}
    cells["% computed"] = [_text(numbers["prompt_computed"], "{:.2%}").removesuffix("%") for numbers in every]
    cells |= {key: [str(numbers[key]) for numbers in every] for key in ("failed", "disturbed")}
    shown = {key: column for key, column in cells.items() if key in ("records", "score") or set(column) - {"-", "0"}}
    return table(["", *shown], list(zip(named, *shown.values(), strict=True)))


def explanations(scores: Mapping[str, Any], method: str) -> list[str]:
    """Return what the numbers of a paired run mean, and why decode steps are slower; a line each."""
    by_dataset = scores["datasets"].values()
    if all(numbers["ttft_speedup"] is None for numbers in by_dataset):
        return []
    lines = [
        "scores are out of 100; first token, whole answer and decode step are speedups over the unmodified model: "
        "above 1x is faster"
    ]
    if method in (PAPER, PLUS) and any((numbers["decode_step_speedup"] or 1) < 1 for numbers in by_dataset):
        lines.append("decode steps are slower: those that rank tokens also compute the ones that they revive")
    return lines


def _score(numbers: Mapping[str, Any]) -> str:
    seeds = numbers["score_by_seed"]
    return _text(numbers["score"], "{:.2f}") + (f" ± {stdev(seeds):.2f}" if seeds else "")


def _same_answers(numbers: Mapping[str, Any]) -> str:
    return f"{round(numbers['same_answers'], 1):g} of {numbers['compared']}" if numbers.get("compared") else "-"


def error_kind(error: str) -> str:
    """Return an error without its numbers, such as a prompt's length."""
    return re.sub(r"\d+", "N", error)


def failures(rows: Collection[Mapping[str, Any]]) -> list[str]:
    """Return a line for each kind of failure among some records: how many there are, and the first one's reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if error := row.get("error"):
            reasons.setdefault(error_kind(error), []).append(error)
    return [f"failed: {len(errors)} of {len(rows)} records: {errors[0]}" for errors in reasons.values()]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
