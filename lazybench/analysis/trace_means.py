"""Average a run's traces for Figures 2 and 7, small enough to commit."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

BINS = 100  # parts of a prompt by which its attention is stored


def trace_means(rows: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Average a run's lines of `traces.jsonl` over records.

    Returns:
        `layers` and `computed` for Figure 7: the layers of the stages, and the fraction of prompt tokens computed after
        each, as `mean`, `low` and `high` (10th and 90th percentile) of shape `(stages, steps)`, with the number of
        `records`. If records differ in their layers, those with the most frequent ones are averaged. A record whose
        generation has ended keeps its last value, so that every step averages the same records; `living` counts the
        records that still generate at each step.

        `attention` for Figure 2: `map`, the mean of `(layers, BINS)`, and `mean`, `low` and `high` of the cumulative
        share of attention mass on the top x % of tokens, x = 0..100, with the number of `records`.

        A part without traced records is left out.
    """
    computed = [row for row in rows if row.get("computed")]
    attention = [row["attention"] for row in rows if row.get("attention")]
    return _computed(computed) | _attention(attention)


def _computed(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    if not rows:
        return {}
    # Folds of a matched method may prune after different layers.
    layers, _ = Counter(tuple(row["stages"]) for row in rows).most_common(1)[0]
    rows = [row for row in rows if tuple(row["stages"]) == layers]
    lengths = np.array([len(row["computed"]) for row in rows])
    steps = np.arange(lengths.max())
    values = [np.asarray(row["computed"], dtype=float)[np.minimum(steps, len(row["computed"]) - 1)].T for row in rows]
    living = (lengths[:, None] > steps).sum(axis=0).tolist()
    computed = {"records": len(rows), "living": living, **_spread(np.array(values))}
    return {"layers": [*layers], "computed": computed}


def _attention(traced: list[Mapping[str, Any]]) -> dict[str, Any]:
    if not traced:
        return {}
    maps = np.mean([_rebin(np.asarray(attention["map"], dtype=float)) for attention in traced], axis=0)
    mass = np.asarray([attention["sorted_mass"] for attention in traced], dtype=float)
    return {"attention": {"records": len(traced), "map": maps.round(5).tolist(), **_spread(mass)}}


def _rebin(attention: np.ndarray) -> np.ndarray:
    """Interpolate attention `(layers, bins)` to `(layers, BINS)`; short prompts have fewer bins."""
    edges, new_edges = np.linspace(0, 1, attention.shape[1] + 1), np.linspace(0, 1, BINS + 1)
    cumulative = np.pad(attention, ((0, 0), (1, 0))).cumsum(axis=1)
    return np.diff([np.interp(new_edges, edges, layer) for layer in cumulative], axis=1)


def _spread(values: np.ndarray) -> dict[str, Any]:
    low, high = np.quantile(values, (0.1, 0.9), axis=0)
    return {"mean": values.mean(axis=0).round(5).tolist(), "low": low.round(5).tolist(), "high": high.round(5).tolist()}
