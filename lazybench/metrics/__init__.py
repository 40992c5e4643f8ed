"""One metric a file; the file's name is the metric's name.

A metric is a module with one function:

    score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float

which returns 0 to 1. To add a metric, add its file: nothing else has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules

from lazybench.errors import LazyBenchError, suggest

Metric = Callable[[str, str, Sequence[str] | None], float]


def names() -> list[str]:
    """Names of all metrics, without importing any."""
    return [module.name for module in iter_modules(__path__) if not module.name.startswith("_")]


def get(name: str) -> Metric:
    """Import the metric called `name`.

    Raises:
        LazyBenchError: no such metric, or a package that it needs is not installed.
    """
    if name not in names():
        raise LazyBenchError(f"unknown metric {name!r}: {suggest(name, names())}")
    try:
        return import_module(f"{__name__}.{name}").score
    except ModuleNotFoundError as error:
        raise LazyBenchError(f"metric {name!r} needs the package {error.name!r}, which is not installed") from error
