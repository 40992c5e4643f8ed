"""Confidence intervals: how much a number would move with other records of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
_SEED = 0


@dataclass(frozen=True)
class Estimate:
    """A mean over datasets with its 95% interval; no interval where a dataset has a single record."""

    value: float
    low: float | None
    high: float | None


def estimate(datasets: Sequence[tuple[np.ndarray, np.ndarray]]) -> Estimate | None:
    """Macro-average over datasets of a ratio of sums, with a percentile bootstrap over records.

    Args:
        datasets: for each dataset the numerators and the denominators, each `(factors, records)`. A dataset's value
            is the product over the factors of sum over sum; with ones as denominators that is the mean.

    Returns:
        None where the value is not finite (a sum of denominators is zero).
    """
    value = float(np.mean([_ratio(top.sum(axis=1), bottom.sum(axis=1)) for top, bottom in datasets]))
    if not np.isfinite(value):
        return None
    if min(top.shape[1] for top, _ in datasets) < 2:
        return Estimate(value, None, None)
    resampled = []
    for position, (top, bottom) in enumerate(datasets):
        counts = _counts(top.shape[1], position)
        resampled.append(_ratio(top @ counts, bottom @ counts))
    means = np.mean(resampled, axis=0)
    # A resample can leave out every record that counts in a denominator.
    means = means[np.isfinite(means)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.prod(top / bottom, axis=0)


@lru_cache(maxsize=32)
def _counts(records: int, position: int) -> np.ndarray:
    """How often each record is drawn in each resample, `(records, resamples)`.

    The same draws serve every method and measure of as many records, so that two rows of a table differ by what was
    measured and not by the draws. `position` keeps the datasets of a task apart.
    """
    generator = np.random.default_rng([_SEED, records, position])
    return generator.multinomial(records, np.full(records, 1 / records), size=RESAMPLES).T.astype(float)
