"""LongBench's scores: of one prediction, of a dataset, of a task."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from lazybench import metrics
from lazybench.data import DatasetFacts

T = TypeVar("T")
# Metrics that are reported beside another under their own names: the two disagree, and both are in use.
_BESIDE = {"rouge": ("rouge_score_l",), "code_sim": ("code_sim_indel",)}


def score(
    facts: DatasetFacts,
    prediction: str,
    answers: Sequence[str],
    all_classes: Sequence[str] | None,
    metric: str | None = None,
) -> float:
    """LongBench's official score of one prediction, 0 to 1: the best over the references, by another `metric` if given.

    Raises:
        LazyBenchError: the metric cannot use these references or classes.
    """
    if facts.first_line:
        prediction = prediction.lstrip("\n").split("\n")[0]
    measure = metrics.get(metric or facts.metric)
    return max((measure(prediction, answer, all_classes) for answer in answers), default=0.0)


def beside(
    facts: DatasetFacts, prediction: str, answers: Sequence[str], all_classes: Sequence[str] | None
) -> dict[str, float]:
    """The further scores of one prediction by metric, 0 to 1; empty for most datasets."""
    further = _BESIDE.get(facts.metric, ())
    return {metric: score(facts, prediction, answers, all_classes, metric) for metric in further}


def by_task(datasets: Mapping[str, T], facts: Mapping[str, DatasetFacts]) -> dict[str, list[T]]:
    """What there is of each dataset, by task; a dataset that belongs to no task is left out."""
    tasks = dict.fromkeys(facts[name].task for name in datasets)
    return {task: [of for name, of in datasets.items() if facts[name].task == task] for task in tasks if task}
