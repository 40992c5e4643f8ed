"""Scores of one prediction against one reference, 0 to 1, as LongBench, LongBench v2 and RULER define them.

A metric is a function under `@metric` in one of the files here. The user's own is a function anywhere, named
`module.function`.
"""

from lazybench.metrics import matching, text  # noqa: F401 - importing them registers their metrics
from lazybench.metrics.registry import Metric, get, names

__all__ = ["Metric", "get", "names"]
