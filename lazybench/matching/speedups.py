"""Search how much of the prompt a method must prune to reach a speedup."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformers import PreTrainedModel

from lazybench.errors import LazyBenchError
from lazybench.methods import Method
from lazybench.model.cost import operations, unmodified_operations

_MAX_SHARE = 0.98  # the largest that is tried
_DIGITS = 4


class Trial(NamedTuple):
    """The speedup of a method that prunes a share of the prompt's tokens."""

    share: float
    speedup: float

    def error(self, speedup: float) -> float:
        """Return the distance from a wanted speedup, as a fraction of it."""
        return abs(self.speedup / speedup - 1)


class SpeedupOutOfReach(LazyBenchError):
    """The method does not reach a speedup however much it prunes."""


def find(measure: Callable[[float], float], speedup: float, tolerance: float) -> Trial:
    """Search by bisection for the trial nearest to `speedup`, above 1; end once it is within `tolerance`, a fraction.

    `measure` returns the speedup at a share.

    Raises:
        SpeedupOutOfReach: pruning the largest share gives less than `speedup`.
    """
    strongest = Trial(_MAX_SHARE, measure(_MAX_SHARE))
    if strongest.speedup < (1 - tolerance) * speedup:
        raise SpeedupOutOfReach(
            f"with {_MAX_SHARE:.0%} of the prompt pruned the speedup is {strongest.speedup:.2f}, so {speedup:g} is out "
            "of reach: prune at an earlier layer, or set a smaller speedup"
        )
    low, high, nearest = 0.0, _MAX_SHARE, strongest
    while nearest.error(speedup) > tolerance and (share := round((low + high) / 2, _DIGITS)) not in (low, high):
        trial = Trial(share, measure(share))
        low, high = (share, high) if trial.speedup < speedup else (low, share)
        nearest = min(nearest, trial, key=lambda one: one.error(speedup))
    return nearest


def computed_speedup(method: Method, model: PreTrainedModel, lengths: Sequence[int]) -> float:
    """Return the speedup of prefill by its operations: the unmodified model's over the method's, summed over prompts.

    The model may have no weights; `lengths` are of the prompts, in tokens.
    """
    layer_tokens = [tokens for length in lengths for tokens in method.layer_tokens(model, length)]
    return unmodified_operations(model, lengths) / operations(model, layer_tokens)
