"""LongBench's scores: of one prediction, of a dataset, of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lazybench import metrics
from lazybench.data.facts import DatasetFacts

# Metrics that are reported beside another under their own names: the two disagree, and both are in use.
_BESIDE = {"rouge": ("rouge_score_l",), "code_sim": ("code_sim_indel",)}


def score(facts: DatasetFacts, prediction: str, answers: Sequence[str], all_classes: Sequence[str] | None) -> float:
    """LongBench's official score of one prediction, 0 to 1: the best over the references.

    Raises:
        LazyBenchError: the metric cannot use these references or classes.
    """
    return _best(facts.metric, facts, prediction, answers, all_classes)


def beside(
    facts: DatasetFacts, prediction: str, answers: Sequence[str], all_classes: Sequence[str] | None
) -> dict[str, float]:
    """The further scores of one prediction by metric, 0 to 1; empty for most datasets."""
    return {metric: _best(metric, facts, prediction, answers, all_classes) for metric in _BESIDE.get(facts.metric, ())}


def dataset_score(scores: Sequence[float]) -> float:
    """Score of a dataset, 0 to 100: the mean of its records' scores (0 to 1). Needs one at least."""
    return 100 * sum(scores) / len(scores)


def task_scores(datasets: Mapping[str, float], facts: Mapping[str, DatasetFacts]) -> dict[str, float]:
    """Score of each task, 0 to 100: the mean over those of its datasets that are in `datasets`.

    Args:
        datasets: score of each dataset, 0 to 100. One that belongs to no task counts nowhere.
        facts: what `load_facts` returned.
    """
    by_task: dict[str, list[float]] = {}
    for name, value in datasets.items():
        task = facts[name].task
        if task is not None:
            by_task.setdefault(task, []).append(value)
    return {task: sum(values) / len(values) for task, values in by_task.items()}


def _best(
    metric: str,
    facts: DatasetFacts,
    prediction: str,
    answers: Sequence[str],
    all_classes: Sequence[str] | None,
) -> float:
    if facts.first_line:
        prediction = prediction.lstrip("\n").split("\n")[0]
    measure = metrics.get(metric)
    return max((measure(prediction, answer, all_classes) for answer in answers), default=0.0)
