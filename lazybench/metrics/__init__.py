"""One metric a file; the file's name is the metric's name.

A metric is a module with one function:

    score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float

which returns 0 to 1. To add a metric, add its file: nothing else has to know. A metric of the user's own is such a
function anywhere, and its name is `module.function`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from numbers import Real
from pkgutil import iter_modules, resolve_name

from lazybench.errors import LazyBenchError, first_line, raised_by, suggest

Metric = Callable[[str, str, Sequence[str] | None], float]


def names() -> list[str]:
    """Names of LazyBench's own metrics, without importing any."""
    return [module.name for module in iter_modules(__path__) if not module.name.startswith("_")]


def get(name: str) -> Metric:
    """Import the metric called `name`.

    Raises:
        LazyBenchError: no such metric, or a package that it needs is not installed.
    """
    if "." in name:
        try:
            metric = resolve_name(name)
        except Exception as error:  # the user's module, which may raise anything
            raise LazyBenchError(f"metric {name!r} cannot be imported: {first_line(error)}") from error
        if not callable(metric):
            raise LazyBenchError(f"metric {name!r} is no function")
        return partial(_checked, name, metric)
    if name not in names():
        raise LazyBenchError(f"unknown metric {name!r}: {suggest(name, names())}")
    try:
        return import_module(f"{__name__}.{name}").score
    except ModuleNotFoundError as error:
        raise LazyBenchError(f"metric {name!r} needs the package {error.name!r}, which is not installed") from error


def _checked(name: str, metric: Metric, prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    try:
        score = metric(prediction, reference, all_classes)
    except Exception as error:
        raise LazyBenchError(f"metric {name!r} raised {raised_by(error)}") from error
    if not isinstance(score, Real) or not 0 <= score <= 1:
        raise LazyBenchError(f"metric {name!r} gave {score!r}: a score is from 0 to 1")
    return float(score)
