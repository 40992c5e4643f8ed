"""From records to a dataset's and a task's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from lazybench.facts import DatasetFacts


def summarise(rows: Iterable[Mapping[str, Any]], facts: Mapping[str, DatasetFacts]) -> dict[str, Any]:
    """Scores and speedups of a run.

    Args:
        rows: the run's records.
        facts: facts by dataset.

    Returns:
        `datasets` and `tasks`, each by name with `score` (0 to 100), `records`, `ttft_speedup` and
        `generation_speedup` (mean baseline time over mean method time on the same records; None without paired
        times) and `prompt_computed` (0 to 1). A task's values are the mean over its datasets.
    """
    by_dataset: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_dataset.setdefault(row["dataset"], []).append(row)
    datasets = {name: _dataset(by_dataset[name]) for name in facts if name in by_dataset}
    by_task: dict[str, list[dict[str, Any]]] = {}
    for name, numbers in datasets.items():
        if facts[name].task is not None:
            by_task.setdefault(facts[name].task, []).append(numbers)
    return {"datasets": datasets, "tasks": {task: _macro_average(of) for task, of in by_task.items()}}


def _dataset(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "score": 100 * fmean(row["score"] for row in rows),
        "records": len(rows),
        "ttft_speedup": _speedup(rows, "ttft_s"),
        "generation_speedup": _speedup(rows, "generation_s"),
        "prompt_computed": fmean(row["prompt_computed"] for row in rows),
    }


def _speedup(rows: list[Mapping[str, Any]], time: str) -> float | None:
    if any(row[f"baseline_{time}"] is None for row in rows):
        return None
    return fmean(row[f"baseline_{time}"] for row in rows) / fmean(row[time] for row in rows)


def _macro_average(datasets: list[dict[str, Any]]) -> dict[str, Any]:
    averaged = {}
    for key in ("score", "ttft_speedup", "generation_speedup", "prompt_computed"):
        values = [numbers[key] for numbers in datasets]
        averaged[key] = None if None in values else fmean(values)
    averaged["records"] = sum(numbers["records"] for numbers in datasets)
    return averaged
