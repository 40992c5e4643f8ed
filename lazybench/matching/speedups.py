"""Search how much of the prompt a method must prune to reach a speedup."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformers import PreTrainedModel

from lazybench.errors import LazyBenchError
from lazybench.methods import Method
from lazybench.model.cost import operations, unpruned_operations

_MAX_SHARE = 0.98  # pruning more leaves nothing of a prompt
_MAX_TRIALS = 12
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
    """Return the trial whose speedup is within `tolerance`, a fraction, of `speedup`, above 1; else the nearest.

    `measure` returns the speedup at a share.

    Raises:
        SpeedupOutOfReach: the method is slower however much it prunes.
    """
    trials: list[Trial] = []
    for number in range(_MAX_TRIALS):
        if any(trial.error(speedup) <= tolerance for trial in trials):
            break
        share = round(_next_share(sorted(trials), speedup, bisect=number % 3 == 2), _DIGITS)
        if any(trial.share == share for trial in trials):
            break
        trials.append(Trial(share, measure(share)))
    strongest, fastest = max(trials), max(trial.speedup for trial in trials)
    if strongest.share == _MAX_SHARE and fastest < (1 - tolerance) * speedup:
        raise SpeedupOutOfReach(
            f"with {_MAX_SHARE:.0%} of the prompt pruned the speedup is {strongest.speedup:.2f}, so {speedup:g} is out "
            "of reach: prune at an earlier layer, or ask for less"
        )
    return min(trials, key=lambda trial: trial.error(speedup))


def computed_speedup(method: Method, model: PreTrainedModel, lengths: Sequence[int]) -> float:
    """Return the speedup of prefill by its operations: the unmodified model's over the method's, summed over prompts.

    The model may have no weights; `lengths` are of the prompts, in tokens.
    """
    layer_tokens = [tokens for length in lengths for tokens in method.layer_tokens(model, length)]
    return unpruned_operations(model, lengths) / operations(model, layer_tokens)


def _next_share(trials: Sequence[Trial], speedup: float, bisect: bool) -> float:
    """Return the share to try next: interpolated in the reciprocal of the speedup between the nearest two trials."""
    below = max((trial.share for trial in trials if trial.speedup < speedup), default=0.0)
    above = next((trial for trial in trials if trial.share > below), None)
    if above is None:
        return min(_MAX_SHARE, (1 + below) / 2 if trials else 1 - 1 / speedup)
    time_below = next((1 / trial.speedup for trial in trials if trial.share == below), 1.0)
    if bisect or 1 / above.speedup >= time_below:
        return (below + above.share) / 2
    return below + (above.share - below) * (time_below - 1 / speedup) / (time_below - 1 / above.speedup)
