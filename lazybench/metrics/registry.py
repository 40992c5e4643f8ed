"""The metrics by name."""

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from pkgutil import resolve_name

from lazybench.errors import LazyBenchError, first_line, raised_by, suggest

Metric = Callable[[str, str, Sequence[str] | None], float]
"""Scores a prediction against one reference, 0 to 1, given the class names of a classification."""

_METRICS: dict[str, Metric] = {}


def metric(function: Metric) -> Metric:
    """Register a function as the metric of its name."""
    _METRICS[function.__name__] = function
    return function


def names() -> list[str]:
    """List LazyBench's own metrics."""
    return sorted(_METRICS)


def get(name: str) -> Metric:
    """Return the metric `name`, LazyBench's or `module.function` of the user's; `LazyBenchError` if there is none."""
    if "." not in name:
        if name not in _METRICS:
            raise LazyBenchError(f"unknown metric {name!r}: {suggest(name, names())}")
        return _METRICS[name]
    try:
        function = resolve_name(name)
    except Exception as error:  # the user's module, which may raise anything
        raise LazyBenchError(f"metric {name!r} cannot be imported: {first_line(error)}") from error
    return partial(_checked, name, function)


def _checked(name: str, metric: Metric, prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    try:
        score = metric(prediction, reference, all_classes)
    except Exception as error:
        raise LazyBenchError(f"metric {name!r} raised {raised_by(error)}") from error
    if not isinstance(score, Real) or not 0 <= score <= 1:
        raise LazyBenchError(f"metric {name!r} gave {score!r}: a score is from 0 to 1")
    return float(score)
