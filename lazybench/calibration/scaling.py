"""Schedules of a given ideal speedup: how strongly to prune at given layers, and other schedules scaled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from lazybench.calibration.times import Times
from lazyllm import PruningSchedule

# Less than this is none of the prompt at all.
LEAST_KEEP = 0.01
_HALVINGS = 40
_DIGITS = 4
_STEP = 0.01


def with_speedup(
    times: Times, lengths: Sequence[int], layers: Sequence[int], strengths: Sequence[float], speedup: float
) -> PruningSchedule | None:
    """The schedule that prunes after `layers` and has just the ideal speedup that is asked for.

    Args:
        times: the model's times.
        lengths: prompt lengths in tokens.
        layers: where to prune, increasing.
        strengths: how strongly to prune there, against each other: the keeps are `exp(-strength * x)`, for one `x`.
        speedup: the ideal speedup.

    Returns:
        None where the first layers alone take longer.
    """

    def at(power: float) -> PruningSchedule:
        keeps = (max(LEAST_KEEP, math.exp(-strength * power)) for strength in strengths)
        return PruningSchedule((layer, round(keep, _DIGITS)) for layer, keep in zip(layers, keeps, strict=True))

    low, high = 0.0, -math.log(LEAST_KEEP) / min(strengths)
    if times.speedup(at(high), lengths) < speedup:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if times.speedup(at(middle), lengths) < speedup:
            low = middle
        else:
            high = middle
    return at(high)


def scaled_keeps(
    schedule: PruningSchedule, times: Times, lengths: Sequence[int], speedup: float
) -> PruningSchedule | None:
    """`schedule` with its layers as they are and its keeps to a common power; None where that is not fast enough."""
    return with_speedup(times, lengths, [stage.layer for stage in schedule.stages], _strengths(schedule), speedup)


def scaled_depth(
    schedule: PruningSchedule, times: Times, lengths: Sequence[int], speedup: float
) -> PruningSchedule | None:
    """`schedule` with its stages nearer to the first layer, or the last, and its keeps to the same power.

    A stage after `n` layers moves to `x * n` of them and keeps `keep ** (1 / x)`; the keeps then make up for what whole
    layers leave.
    """
    strengths = _strengths(schedule)
    last = times.layers - 2
    steps = range(round(1 / _STEP) * 2, 0, -1)
    for factor in (step * _STEP for step in steps):
        layers = [max(0, round(factor * (stage.layer + 1)) - 1) for stage in schedule.stages]
        if layers[-1] > last or any(after <= before for before, after in pairwise(layers)):
            continue
        keeps = [max(LEAST_KEEP, math.exp(-strength / factor)) for strength in strengths]
        if times.speedup(PruningSchedule(zip(layers, keeps, strict=True)), lengths) >= speedup:
            return with_speedup(times, lengths, layers, strengths, speedup)
    return None


def _strengths(schedule: PruningSchedule) -> list[float]:
    return [-math.log(stage.keep) for stage in schedule.stages]
