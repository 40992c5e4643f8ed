"""Average a run's records, or a timing run's, and format the numbers that `run` and `time` print."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import MEAN, SCORE
from lazybench.analysis.console import table
from lazybench.analysis.records import KEY, answers_table, times_table
from lazybench.data import DatasetConfig

Lines = Collection[Mapping[str, Any]]
_SPEEDUPS = (averages.TTFT, averages.ANSWER, averages.DECODE_STEP, averages.OVER_NOTHING_PRUNED)
_AVERAGED = (SCORE, averages.UNMODIFIED_SCORE, *_SPEEDUPS, replace(averages.COMPUTED, scale=1))
_COUNTS = ("failed", "at_limit", "timed", "noisy")
_TITLES = {"first token": averages.TTFT, "whole answer": averages.ANSWER, "decode step": averages.DECODE_STEP}
_MEANING = "first token, whole answer and decode step are speedups over the unmodified model: above 1x is faster"


def summarise(rows: Lines, configs: Mapping[str, DatasetConfig], times: Lines = ()) -> dict[str, Any]:
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
    records["task"] = records["dataset"].map(lambda name: configs[name].task)
    by_dataset, by_task = (dict(iter(records.groupby(key))) for key in ("dataset", "task"))
    names = [name for name in configs if name in by_dataset]
    groups = list(dict.fromkeys(group for name in names for group in configs[name].groups))
    tasks = filter(None, dict.fromkeys(configs[name].task for name in names))
    return {
        "datasets": {name: _numbers(by_dataset[name].assign(task=name), configs[name].groups) for name in names},
        "tasks": {task: _numbers(by_task[task], groups) for task in tasks},
        MEAN: _numbers(records.dropna(subset="task"), groups) if len(by_task) > 1 else None,
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
    groups = dict.fromkeys(group for numbers in named.values() for group in numbers["score_by_group"])
    lines = []
    for name, numbers in named.items():
        seeds, computed = numbers["score_by_seed"], numbers["prompt_computed"]
        cells = {"": name, "records": str(numbers["records"])}
        cells["score"] = _text(numbers["score"], "{:.2f}") + (f" ± {stdev(seeds):.2f}" if seeds else "")
        cells |= {group: _text(numbers["score_by_group"].get(group), "{:.2f}") for group in groups}
        cells["unmodified"] = _text(numbers["unmodified_score"], "{:.2f}")
        cells["same answers"] = f"{round(numbers['same_answers'], 1):g} of {numbers['records']}"
        cells |= {title: _text(numbers[measure.key], "{:.2f}x") for title, measure in _TITLES.items()}
        cells["% computed"] = _text(computed and 100 * computed, "{:.2f}")
        cells |= {key.replace("_", " "): f"{round(numbers[key], 1):g}" for key in _COUNTS}
        lines.append(cells)
    shown = [key for key in lines[0] if key in ("records", "score") or {line[key] for line in lines} - {"-", "0"}]
    text = table(shown, [[line[key] for key in shown] for line in lines])
    return f"{text}\n\nscores are out of 100; {_MEANING}" if "timed" in shown else text


def times_summary(times: Lines, labels: Mapping[str, str], configs: Mapping[str, DatasetConfig]) -> str:
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


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
