"""From records to a dataset's and a task's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from lazybench.data.facts import DatasetFacts

_TIMES = {"ttft_speedup": "ttft_s", "generation_speedup": "generation_s", "decode_step_speedup": "decode_step_s"}
# What a time is set against, by what is behind a speedup's name: the unmodified model, or the method's own engine.
_OVER = {"": "baseline", "_over_keep_1": "keep_1"}
_AVERAGED = ("score", *(f"{name}{over}" for name in _TIMES for over in _OVER), "prompt_computed")
_COUNTED = ("records", "failed", "disturbed", "retaken")


def summarise(rows: Iterable[Mapping[str, Any]], facts: Mapping[str, DatasetFacts]) -> dict[str, Any]:
    """Scores and speedups of a run.

    Args:
        rows: the run's records.
        facts: facts by dataset.

    Returns:
        `datasets` and `tasks`, each by name, and `mean_of_tasks`, which is None for a single task. Each has
        `score` (0 to 100), `records`, `failed` (records the method could not run, left out of the rest), `disturbed`
        (records whose times other work on the machine had a part in, left out of speedups), `retaken` (passes taken
        again for that), `prompt_computed` (1 is the whole prompt once), `score_by_seed` (the score of each seed of a
        method that has several, else None), and speedups: `ttft_speedup`, `generation_speedup` and
        `decode_step_speedup` over the unmodified model, each also `..._over_keep_1`, over the method's own engine with
        nothing pruned. A dataset's speedup is the mean of that time over the mean of the method's on the same
        records; None without such times. A task's values are the mean over its datasets, and `mean_of_tasks` is the
        mean over the tasks.
    """
    by_dataset: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_dataset.setdefault(row["dataset"], []).append(row)
    datasets = {name: _dataset(by_dataset[name]) for name in facts if name in by_dataset}
    by_task: dict[str, list[dict[str, Any]]] = {}
    for name, numbers in datasets.items():
        if facts[name].task is not None:
            by_task.setdefault(facts[name].task, []).append(numbers)
    tasks = {task: _macro_average(of) for task, of in by_task.items()}
    mean = _macro_average(list(tasks.values())) if len(tasks) > 1 else None
    return {"datasets": datasets, "tasks": tasks, "mean_of_tasks": mean}


def _dataset(every: list[Mapping[str, Any]]) -> dict[str, Any]:
    rows = [row for row in every if not row.get("error")]
    timed = [row for row in rows if not row["disturbed"]]
    counts = {
        "records": len(rows),
        "failed": len(every) - len(rows),
        "disturbed": len(rows) - len(timed),
        "retaken": sum(row["retaken"] for row in rows),
    }
    if not rows:
        return {**dict.fromkeys((*_AVERAGED, "score_by_seed")), **counts}
    return {
        "score": 100 * fmean(row["score"] for row in rows),
        **counts,
        **{
            f"{name}{over}": _speedup(timed, time, f"{other}_{time}")
            for name, time in _TIMES.items()
            for over, other in _OVER.items()
        },
        "prompt_computed": fmean(row["prompt_computed"] for row in rows),
        "score_by_seed": _by_seed([[repeat["score"] for repeat in row.get("repeats", ())] for row in rows], 100),
    }


def _by_seed(scores: Sequence[Sequence[float] | None], scale: float = 1) -> list[float] | None:
    """The mean of each seed over records or datasets; None where there are not several seeds throughout."""
    if not all(scores):
        return None
    return [scale * fmean(of_seed) for of_seed in zip(*scores, strict=True)]


def _speedup(rows: list[Mapping[str, Any]], time: str, other: str) -> float | None:
    """Mean of another's time over the mean of the method's, on the records that have both."""
    # An answer of one token has no decode step.
    both = [(row[other], row[time]) for row in rows if row[other] is not None and row[time] is not None]
    return fmean(of for of, _ in both) / fmean(own for _, own in both) if both else None


def _macro_average(members: list[dict[str, Any]]) -> dict[str, Any]:
    averaged = {}
    for key in _AVERAGED:
        values = [numbers[key] for numbers in members]
        averaged[key] = None if None in values else fmean(values)
    averaged["score_by_seed"] = _by_seed([numbers["score_by_seed"] for numbers in members])
    return averaged | {key: sum(numbers[key] for numbers in members) for key in _COUNTED}
