"""Scores of one prediction against one reference, 0 to 1, by LongBench's and RULER's official definitions.

A metric is a function under `@metric` in one of the files here. The user's own is a function anywhere, named
`module.function`.
"""

from lazybench.metrics import matching, text  # noqa: F401 - importing them registers their metrics
from lazybench.metrics.registry import Metric, get, names

__all__ = ["Metric", "get", "names"]
