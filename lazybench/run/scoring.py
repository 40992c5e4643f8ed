"""Score predictions as LongBench does."""

from collections.abc import Sequence
from statistics import fmean

from lazybench import metrics
from lazybench.data import DatasetConfig

# Variants of a metric that are reported under their own names: the two disagree, and both are in use.
_VARIANTS = {"rouge": ("rouge_score_l",), "code_sim": ("code_sim_indel",)}
_MEANS = ("string_match_all",)  # metrics for which every reference counts


def score(
    config: DatasetConfig,
    prediction: str,
    answers: Sequence[str],
    all_classes: Sequence[str] | None,
    metric: str | None = None,
) -> float:
    """Return the official score of one prediction, 0 to 1: the best over the references, or their mean (`_MEANS`).

    `metric` replaces the dataset's metric.

    Raises:
        LazyBenchError: the metric cannot use these references or classes.
    """
    if config.first_line:
        prediction = prediction.lstrip("\n").split("\n")[0]
    name = metric or config.metric
    function = metrics.get(name)
    scores = [function(prediction, answer, all_classes) for answer in answers]
    return fmean(scores) if name in _MEANS else max(scores, default=0.0)


def variants(
    config: DatasetConfig, prediction: str, answers: Sequence[str], all_classes: Sequence[str] | None
) -> dict[str, float]:
    """Return the scores of one prediction by each variant of its metric, 0 to 1; empty for most datasets."""
    names = _VARIANTS.get(config.metric, ())
    return {metric: score(config, prediction, answers, all_classes, metric) for metric in names}
