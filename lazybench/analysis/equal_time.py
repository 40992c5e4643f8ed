"""Divergence at equal time of the whole answer: what a reader chooses a method by."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from lazybench.analysis.averages import ANSWER, GEOMETRIC_KL, KL, average, column_of, weights_of
from lazybench.analysis.blocks import Block, pruned
from lazybench.analysis.intervals import ENDS, NEGLIGIBLE, draws, influences, rounded

COLUMNS = ["method", "answer_speedup", "geometric_kl", "geometric_kl_low", "geometric_kl_high", "kl", "records"]


class _Point(NamedTuple):
    """A row's numbers and records."""

    speedup: float
    geometric_kl: float
    kl: float
    records: pd.DataFrame


def equal_time(block: Block) -> pd.DataFrame:
    """Interpolate each method's KL between its rows at one speedup of the whole answer.

    The logarithm of the KL is linear in that of the speedup between two rows; nothing is extrapolated. The speedup is
    the one, of those of all rows, that lies within the speedups of most methods, the largest of several; random drop,
    which is far worse, does not count. The interval is of a Bayesian bootstrap that resamples records with their times
    and divergences; a sample in which the speedup lies outside takes the nearer row.

    Returns:
        `COLUMNS`: a line per method with several rows; its KLs are missing where the speedup lies outside its own.
        There is no line if fewer than two methods have several rows with times and KLs.
    """
    tasks, points = block.averaged(block.compared), {}
    for row in pruned(block.compared):
        records = row.select(tasks)
        values = [average(records, measure).value for measure in (ANSWER, GEOMETRIC_KL, KL)]
        if all(values):
            points.setdefault((row.method, row.title), []).append(_Point(*values, records))
    methods = {name: sorted(own, key=lambda point: point.speedup) for name, own in points.items() if len(own) > 1}
    counted = [own for (method, _), own in methods.items() if method != "random_drop"]
    if len(counted) < 2:
        return pd.DataFrame(columns=COLUMNS)
    candidates = [point.speedup for own in counted for point in own]
    speedup = max(candidates, key=lambda s: (sum(own[0].speedup <= s <= own[-1].speedup for own in counted), s))
    lines = []
    for (_, title), own in methods.items():
        line = {"method": title, "answer_speedup": speedup, "records": len(own[0].records)}
        around = [both for both in pairwise(own) if both[0].speedup <= speedup <= both[1].speedup]
        lines.append(line | (_interpolated(*around[0], speedup) if around else {}))
    return pd.DataFrame(lines, columns=COLUMNS)


def _interpolated(first: _Point, second: _Point, speedup: float) -> dict[str, float]:
    """Return the KLs between two points, the geometric mean with its interval if both have the same records."""
    (start, *kls), (end, *others) = np.log(first[:3]), np.log(second[:3])
    share = 1.0 if start == end else (np.log(speedup) - start) / (end - start)
    values = [rounded(float(np.exp(kl + (other - kl) * share))) for kl, other in zip(kls, others, strict=True)]
    result = dict(zip(("geometric_kl", "kl"), values, strict=True))
    if first.records["_id"].tolist() == second.records["_id"].tolist():
        (starts, kls), (ends, others) = _samples(first.records), _samples(second.records)
        shares = np.clip((np.log(speedup) - starts) / (ends - starts), 0, 1)
        sampled = np.exp(kls + (others - kls) * shares)
        low, high = (rounded(float(np.quantile(sampled, end))) for end in ENDS)
        result |= {"geometric_kl_low": low, "geometric_kl_high": high}
    return result


def _samples(records: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of speedup and geometric KL in each sample of records."""
    weights, is_timed, is_traced = draws(len(records)), records["ttft_s"].notna(), records["kl"].notna()
    timed, traced = records[is_timed], weights[is_traced]
    top, bottom = (column_of(timed, key) for key in (ANSWER.top, ANSWER.bottom))
    own = weights[is_timed] * weights_of(timed)[:, None]
    speedups = influences(top, bottom, timed["dataset"]) @ own / own.sum(axis=0)
    kls = np.log(np.maximum(records["kl"][is_traced].to_numpy(float), NEGLIGIBLE)) @ traced / traced.sum(axis=0)
    return np.log(speedups), kls
