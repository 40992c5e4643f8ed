"""Confidence intervals: how much a number would move with other records of the same kind.

A number is an average over datasets of means, or of ratios of means, over records. Its interval is Student's, for
records drawn dataset by dataset:

- A dataset's jackknife pseudo-values (Miller 1974) stand for its records. For a mean they are the records; for a ratio
  of means they carry its bias and how much a single record pulls.
- Their variances add up, with Satterthwaite's (1946) degrees of freedom, or fewer where a few records have most of the
  variance: it is then known less well than that of normal samples, as its own variance grows with the fourth moment.
- The end on the side of the longer tail moves out by the first term of the Edgeworth expansion of a studentised mean
  (Johnson 1978; Hall 1992). Samples of a long tail show only a part of its skewness, so for their means the term counts
  `_HIDDEN` times.

Where there is an interval it covers the truth in at least 0.92 of simulated samples: of scores with a lump at 0, paired
differences, ratios of times and divergences, in 1 to 16 datasets of 2 to 200 records (the tests simulate it).
Percentiles of a bootstrap cover 0.6 to 0.9 with 2 to 8 records.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
# So many records, over all datasets, must differ from the most common value of their dataset; found by simulation.
LEAST, LEAST_LONG_TAILED = 5, 40
_HIDDEN = 3
NEGLIGIBLE = 1e-6  # nats
# Values nearer to each other than this, relative to the largest, are the same.
_SAME = 1e-9


@dataclass(frozen=True)
class Estimate:
    """An average over datasets with its 95% interval; no interval where there are too few records for its level."""

    value: float
    low: float | None
    high: float | None


def columns(name: str, of: Estimate | None) -> dict[str, float | None]:
    """An estimate as columns, its ends as `_low` and `_high`; None throughout where there is none."""
    return {name + end: getattr(of, key, None) for end, key in (("", "value"), ("_low", "low"), ("_high", "high"))}


def estimate(
    datasets: Sequence[tuple[np.ndarray, np.ndarray]],
    weights: Sequence[float] | None = None,
    *,
    long_tailed: bool = False,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate | None:
    """Weighted average over datasets of a ratio of sums over records, with its 95% interval.

    Args:
        datasets: for each dataset the numerators and the denominators, each `(1, records)`.
        weights: of each dataset, in proportion; None weighs them alike.
        long_tailed: whether a few records may have most of the sum: an interval then needs more of them.
        limits: the least and the largest value there can be; an interval ends there.

    Returns:
        None where the value is not finite (a sum of denominators is zero).
    """
    sizes = np.array([top.shape[1] for top, _ in datasets])
    if not sizes.all():
        return None
    top, bottom = (np.concatenate(rows, axis=1)[0].astype(float) for rows in zip(*datasets, strict=True))
    shares = np.ones(len(sizes)) if weights is None else np.asarray(weights, dtype=float)
    shares = shares / shares.sum()
    starts, every = np.cumsum(sizes) - sizes, np.repeat(sizes, sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        tops, bottoms = np.add.reduceat(top, starts), np.add.reduceat(bottom, starts)
        value = float(shares @ (tops / bottoms))
        if not math.isfinite(value):
            return None
        # Pseudo-values: `n` times the dataset's ratio less `n - 1` times the ratio without the record.
        without = (np.repeat(tops, sizes) - top) / (np.repeat(bottoms, sizes) - bottom)
        values = every * np.repeat(tops / bottoms, sizes) - (every - 1) * without
        # In a ratio the tails of both its parts make up for each other.
        hidden = _HIDDEN if long_tailed and np.ptp(bottom) == 0 else 1
        ends = _reach(values, shares, sizes, starts, LEAST_LONG_TAILED if long_tailed else LEAST, hidden)
    if ends is None:
        return Estimate(value, None, None)
    least, most = limits
    return Estimate(value, max(min(value, least), value - ends[0]), min(max(value, most), value + ends[1]))


def geometric_mean(values: np.ndarray) -> Estimate:
    """The geometric mean over records of numbers from 0, and Student's interval of it; 0 where all of them are 0.

    A number below `NEGLIGIBLE` counts as that: rounding decides there.
    """
    if not values.any():
        return Estimate(0.0, None, None)
    logs = np.log(np.maximum(values, NEGLIGIBLE))
    mean = float(logs.mean())
    if len(logs) <= LEAST:
        return Estimate(math.exp(mean), None, None)
    reach = float(stdtrit(len(logs) - 1, (1 + LEVEL) / 2)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Estimate(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def _reach(
    values: np.ndarray, shares: np.ndarray, sizes: np.ndarray, starts: np.ndarray, least: int, hidden: float
) -> tuple[float, float] | None:
    """How far the interval goes below and above the value; None where its level would not hold."""
    if sizes.min() < 2 or not np.isfinite(values).all():
        return None
    # One more than needed must be able to differ: else only samples without a tie had intervals, a biased choice.
    if sizes.sum() - len(sizes) <= least or _differing(values, sizes) < least:
        return None
    every = np.repeat(sizes, sizes)
    apart = np.repeat(shares, sizes) * (values - np.repeat(np.add.reduceat(values, starts) / sizes, sizes))
    squares = apart**2 / (every * (every - 1))
    of_datasets = np.add.reduceat(squares, starts)
    variance = of_datasets.sum()
    freedom = variance**2 / (of_datasets**2 / (sizes - 1)).sum()
    uneven = (squares**2).sum() - (of_datasets**2 / sizes).sum()
    if uneven > 0:
        freedom = max(1.0, min(freedom, 2 * variance**2 / uneven))
    student = float(stdtrit(freedom, (1 + LEVEL) / 2))
    # Two records say nothing of skewness.
    cubes = np.add.reduceat(apart**3, starts) / (sizes * (sizes - 1) * np.maximum(sizes - 2, 1))
    skewness = float(cubes[sizes > 2].sum() / variance**1.5) * hidden
    further = skewness * (2 * student**2 + 1) / 6
    error = math.sqrt(variance)
    return error * (student + max(0.0, -further)), error * (student + max(0.0, further))


def _differing(values: np.ndarray, sizes: np.ndarray) -> int:
    """Number of records that differ from the most common value of their dataset."""
    same = _SAME * np.abs(values).max()
    found = 0
    for of in np.split(values, np.cumsum(sizes)[:-1]):
        groups = np.split(np.sort(of), np.flatnonzero(np.diff(np.sort(of)) > same) + 1)
        found += len(of) - max(map(len, groups))
    return found
