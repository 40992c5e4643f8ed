"""95% confidence intervals over records: how far a number could move with other records of the same kind.

A number is a weighted mean over datasets of means, or of ratios of means, over records. Its interval is Student's, with
records drawn dataset by dataset:

- A dataset's jackknife pseudo-values (Miller 1974) replace its records. For a mean they are the records; for a ratio
  of means they include its bias and the influence of each record.
- Their variances add up, with Satterthwaite's (1946) degrees of freedom, or fewer where a few records have most of the
  variance.
- The end on the side of the longer tail moves out by the first term of the Edgeworth expansion of a studentised mean
  (Johnson 1978; Hall 1992).

Such an interval covers the truth in at least 0.92 of simulated samples: of scores with a lump at 0, paired differences
and ratios of times, in 1 to 16 datasets of 2 to 200 records, or in LongBench's 16 with one record each and the tasks in
place of datasets. Where that level does not hold, there is no interval: a mean of divergences has none, as a few
records dominate it. Percentiles of a bootstrap cover 0.6 to 0.9 with 2 to 8 records, so scipy's are not used.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import stdtrit

_QUANTILE = (1 + 0.95) / 2
LEAST = 5  # records that must differ from the most common value of their dataset, chosen by simulation
NEGLIGIBLE = 1e-6  # nats
_ROUNDING = 1e-9  # values nearer to each other than this, relative to the largest, are equal


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; None if it is missing, or no interval if its level would not hold."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    records: int = 0  # that it is measured on
    seeds: tuple[float, ...] = ()  # the value of each seed if there are several

    def columns(self, name: str) -> dict[str, float | None]:
        """Return the value and its interval as columns `name`, `name_low` and `name_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def rounded(value: float, decimals: int = 12) -> float:
    """Round to 10 digits and `decimals`, to hide that machines sum in different orders."""
    return float(f"{round(value, decimals):.10g}")


def estimate(
    numerators: ArrayLike,
    denominators: ArrayLike | None = None,
    datasets: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    *,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """Estimate a weighted mean over datasets of a ratio of sums over records.

    Args:
        numerators: one per record, as for all arguments.
        denominators: None for a mean.
        datasets: the record's dataset; None for a single one.
        weights: the record's share in its dataset's weight, which is their sum; None weighs datasets alike.
        limits: the least and the largest possible value; an interval ends there.

    Returns:
        The estimate, rounded; its value is None if it is not finite (a sum of denominators is zero).
    """
    top = np.asarray(numerators, dtype=float)
    bottom = np.ones_like(top) if denominators is None else np.asarray(denominators, dtype=float)
    codes = np.zeros(len(top), dtype=int) if datasets is None else pd.factorize(np.asarray(datasets, dtype=object))[0]
    sizes, tops, bottoms = (np.bincount(codes, values) for values in (np.ones_like(top), top, bottom))
    shares = np.ones_like(sizes) if weights is None else np.bincount(codes, np.asarray(weights, dtype=float))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = tops / bottoms
        value = float(shares @ ratios / shares.sum())
        if not math.isfinite(value):
            return Estimate()
        without = (tops[codes] - top) / (bottoms[codes] - bottom)
        pseudo_values = sizes[codes] * ratios[codes] - (sizes[codes] - 1) * without
    margins = _margins(pseudo_values, codes, shares / shares.sum())
    if margins is None:
        return Estimate(rounded(value))
    low, high = max(min(value, limits[0]), value - margins[0]), min(max(value, limits[1]), value + margins[1])
    return Estimate(*map(rounded, (value, low, high)))


def geometric_mean(values: np.ndarray) -> Estimate:
    """Estimate the geometric mean over records of numbers from 0, with Student's interval; 0 where all are 0.

    Numbers below `NEGLIGIBLE`, which are mostly rounding, count as `NEGLIGIBLE`.
    """
    if not values.any():
        return Estimate(0.0)
    logs = np.log(np.maximum(values, NEGLIGIBLE))
    mean = float(logs.mean())
    if len(logs) <= LEAST:
        return Estimate(rounded(math.exp(mean)))
    margin = float(stdtrit(len(logs) - 1, _QUANTILE)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Estimate(*(rounded(math.exp(end)) for end in (mean, mean - margin, mean + margin)))


def _margins(values: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> tuple[float, float] | None:
    """Return how far the interval reaches below and above the mean of pseudo-values; None if its level does not hold.

    `codes` number the datasets of records, and `shares` are datasets' weights, which sum to 1.
    """
    sizes = np.bincount(codes)
    if sizes.min() < 2 or not np.isfinite(values).all():
        return None
    # One more than needed must be able to differ: else only samples without a tie had intervals, a biased choice.
    if len(values) - len(sizes) <= LEAST or _num_differing(values, codes) < LEAST:
        return None
    deviations = shares[codes] * (values - (np.bincount(codes, values) / sizes)[codes])
    squares = deviations**2 / (sizes * (sizes - 1))[codes]
    by_dataset = np.bincount(codes, squares)
    variance = by_dataset.sum()
    freedom = variance**2 / (by_dataset**2 / (sizes - 1)).sum()
    # The variance itself varies with the fourth moment, more than in normal samples where few records have most of it.
    excess = (squares**2).sum() - (by_dataset**2 / sizes).sum()
    if excess > 0:
        freedom = max(1.0, min(freedom, 2 * variance**2 / excess))
    student = float(stdtrit(freedom, _QUANTILE))
    # Two records show no skewness.
    cubes = np.bincount(codes, deviations**3) / (sizes * (sizes - 1) * np.maximum(sizes - 2, 1))
    skewness = float(cubes[sizes > 2].sum() / variance**1.5)
    shift = skewness * (2 * student**2 + 1) / 6
    error = math.sqrt(variance)
    return error * (student + max(0.0, -shift)), error * (student + max(0.0, shift))


def _num_differing(values: np.ndarray, codes: np.ndarray) -> int:
    """Count the records that differ from the most common value of their dataset."""
    steps = np.round(values / max(np.abs(values).max(), 1e-300) / _ROUNDING)
    pairs, counts = np.unique(np.stack([codes, steps], axis=1), axis=0, return_counts=True)
    most_common = np.zeros(codes.max() + 1, dtype=int)
    np.maximum.at(most_common, pairs[:, 0].astype(int), counts)
    return len(values) - int(most_common.sum())
