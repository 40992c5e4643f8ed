"""From records to a dataset's and a task's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from lazybench.facts import DatasetFacts


def summarise(rows: Iterable[Mapping[str, Any]], facts: Mapping[str, DatasetFacts]) -> dict[str, Any]:
    """Scores and speedups of a run.

    Args:
        rows: the run's records.
        facts: facts by dataset.

    Returns:
        `datasets` and `tasks`, each by name with `score` (0 to 100), `records`, `failed` (records the method
        could not run, left out of the rest), `ttft_speedup` and `generation_speedup` (mean baseline time over
        mean method time on the same records; None without paired times), `prompt_computed` (0 to 1) and
        `score_by_seed` (the score of each seed of a method that has several, else None). A task's values are the
        mean over its datasets.
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


def _dataset(every: list[Mapping[str, Any]]) -> dict[str, Any]:
    rows = [row for row in every if not row.get("error")]
    counts = {"records": len(rows), "failed": len(every) - len(rows)}
    if not rows:
        nothing = ("score", "ttft_speedup", "generation_speedup", "prompt_computed", "score_by_seed")
        return {**dict.fromkeys(nothing), **counts}
    return {
        "score": 100 * fmean(row["score"] for row in rows),
        **counts,
        "ttft_speedup": _speedup(rows, "ttft_s"),
        "generation_speedup": _speedup(rows, "generation_s"),
        "prompt_computed": fmean(row["prompt_computed"] for row in rows),
        "score_by_seed": _by_seed([[repeat["score"] for repeat in row.get("repeats", ())] for row in rows], 100),
    }


def _by_seed(scores: Sequence[Sequence[float] | None], scale: float = 1) -> list[float] | None:
    """The mean of each seed over records or datasets; None where there are not several seeds throughout."""
    if not all(scores):
        return None
    return [scale * fmean(of_seed) for of_seed in zip(*scores, strict=True)]


def _speedup(rows: list[Mapping[str, Any]], time: str) -> float | None:
    if any(row[f"baseline_{time}"] is None for row in rows):
        return None
    return fmean(row[f"baseline_{time}"] for row in rows) / fmean(row[time] for row in rows)


def _macro_average(datasets: list[dict[str, Any]]) -> dict[str, Any]:
    averaged = {}
    for key in ("score", "ttft_speedup", "generation_speedup", "prompt_computed"):
        values = [numbers[key] for numbers in datasets]
        averaged[key] = None if None in values else fmean(values)
    averaged["score_by_seed"] = _by_seed([numbers["score_by_seed"] for numbers in datasets])
    for key in ("records", "failed"):
        averaged[key] = sum(numbers[key] for numbers in datasets)
    return averaged
