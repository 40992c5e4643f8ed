"""What the figures need of a run's traces, small enough to keep."""

from __future__ import annotations

from typing import Any

import numpy as np

BINS = 100
_SPREAD = (0.1, 0.9)


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and spreads over the records of a run, given as lines of `traces.jsonl`.

    Returns:
        `layers` and `computed` (Figure 7): the layers that prune, and `mean`, `low` and `high` (10th and 90th
        percentile), each `(stages, steps)`, of the fraction of prompt tokens computed behind them. A record whose
        generation has ended keeps its last value, so that every step is about the same records; `living` counts by
        step those that have not.
        `attention` (Figure 2): `map`, the mean of `(layers, BINS)`, and `mean`, `low` and `high` of the cumulative
        share of attention mass held by the top x % of tokens, x = 0..100. `records` counts them, in both.
    """
    return {**_computed(rows), **_attention(rows)}


def _computed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    traced = [row for row in rows if row.get("computed")]
    if not traced:
        return {}
    layers = [_layer(stage) for stage in traced[0]["stages"]]
    steps = max(len(row["computed"]) for row in traced)
    held = np.empty((len(traced), len(layers), steps))
    for record, row in zip(held, traced, strict=True):
        values = np.asarray(row["computed"], dtype=float).T
        record[:, : values.shape[1]] = values
        record[:, values.shape[1] :] = values[:, -1:]
    living = [sum(len(row["computed"]) > step for row in traced) for step in range(steps)]
    return {"layers": layers, "computed": {"records": len(traced), "living": living, **_spread(held)}}


def _attention(rows: list[dict[str, Any]]) -> dict[str, Any]:
    traced = [row["attention"] for row in rows if row.get("attention")]
    if not traced:
        return {}
    maps = np.mean([_rebin(np.asarray(of["map"], dtype=float)) for of in traced], axis=0)
    mass = np.asarray([of["sorted_mass"] for of in traced], dtype=float)
    return {"attention": {"records": len(traced), "map": _short(maps, digits=3), **_spread(mass)}}


def _layer(stage: Any) -> int:
    """The layer of a stage, which is written with or without its keep."""
    return int(stage["layer"] if isinstance(stage, dict) else stage)


def _rebin(attention: np.ndarray) -> np.ndarray:
    """The same attention `(layers, bins)` in as many bins for every record; short prompts come with fewer."""
    given = np.linspace(0, 1, attention.shape[1] + 1)
    wanted = np.linspace(0, 1, BINS + 1)
    so_far = np.pad(attention, ((0, 0), (1, 0))).cumsum(axis=1)
    return np.diff([np.interp(wanted, given, layer) for layer in so_far], axis=1)


def _spread(values: np.ndarray) -> dict[str, Any]:
    low, high = np.quantile(values, _SPREAD, axis=0)
    return {"mean": _short(values.mean(axis=0)), "low": _short(low), "high": _short(high)}


def _short(values: np.ndarray, digits: int = 5) -> list[Any]:
    """Lists of numbers with a few significant digits."""
    if values.ndim > 1:
        return [_short(row, digits) for row in values]
    return [float(f"{value:.{digits}g}") for value in values]
