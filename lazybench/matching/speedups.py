"""Search how much of the prompt a method must prune to reach a speedup."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.errors import LazyBenchError
from lazybench.methods import Method
from lazybench.model.cost import operations, unpruned_operations
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.timing import UNMODIFIED, Pass, undisturbed
from lazybench.store.writing import replace

_MAX_SHARE = 0.98  # pruning more leaves nothing of a prompt
_MAX_TRIALS = 12
_DIGITS = 4


class Trial(NamedTuple):
    """The speedup of a method that prunes this share of the prompt's tokens, over a number of prompts."""

    share: float
    speedup: float
    prompts: int

    def error(self, speedup: float) -> float:
        """Return the distance from a wanted speedup, as a fraction of it."""
        return abs(self.speedup / speedup - 1)


class SpeedupOutOfReach(LazyBenchError):
    """The method does not reach a speedup however much it prunes."""


@dataclass
class Speedups(ABC):
    """The speedup of a method as a function of the share of the prompt's tokens that it prunes in the end."""

    method: Method
    model: PreTrainedModel
    trials: dict[float, Trial] = field(default_factory=dict, init=False)  # by share

    @abstractmethod
    def measure(self, share: float) -> Trial:
        """Return the speedup at this share."""

    def find(self, speedup: float, tolerance: float) -> Trial:
        """Return the trial whose speedup is within `tolerance`, a fraction, of `speedup`, above 1; else the nearest.

        Raises:
            SpeedupOutOfReach: the method is slower however much it prunes.
        """
        for number in range(_MAX_TRIALS):
            if self.trials and self._nearest(speedup).error(speedup) <= tolerance:
                break
            share = round(_next_share(sorted(self.trials.values()), speedup, bisect=number % 3 == 2), _DIGITS)
            if share in self.trials:
                break
            self.trials[share] = self.measure(share)
        strongest, fastest = max(self.trials.values()), max(trial.speedup for trial in self.trials.values())
        if strongest.share == _MAX_SHARE and fastest < (1 - tolerance) * speedup:
            raise SpeedupOutOfReach(
                f"method {self.method.name}: with {_MAX_SHARE:.0%} of the prompt pruned its speedup is "
                f"{strongest.speedup:.2f}, so {speedup:g} is out of reach: prune at an earlier layer, or ask for less"
            )
        return self._nearest(speedup)

    def _nearest(self, speedup: float) -> Trial:
        return min(self.trials.values(), key=lambda trial: trial.error(speedup))


@dataclass
class ComputedSpeedups(Speedups):
    """Speedups of prefill by its operations: the unmodified model's over the method's, summed over prompts."""

    lengths: Sequence[int]

    def measure(self, share: float) -> Trial:
        method = self.method.pruning(share)
        layer_tokens = [tokens for length in self.lengths for tokens in method.layer_tokens(self.model, length)]
        speedup = unpruned_operations(self.model, self.lengths) / operations(self.model, layer_tokens)
        return Trial(share, speedup, len(self.lengths))


@dataclass
class MeasuredSpeedups(Speedups):
    """Speedups of the mean TTFT over prompts, each prompt timed with the unmodified model and the method in turn.

    Pairs that other work disturbed are left out. Each share is timed once and kept in `file`, a CSV.
    """

    prompts: Sequence[Prompt]
    cpu_share: float
    file: Path
    bar: tqdm

    def __post_init__(self) -> None:
        rows = pd.read_csv(self.file).itertuples(index=False) if self.file.exists() else ()
        self.trials = {row.share: Trial(*row) for row in rows}

    def measure(self, share: float) -> Trial:
        method = self.method.pruning(share)
        method.prepare(self.model)
        self._time_pair(method, self.prompts[0], cpu_share=0)  # warms up
        pairs = [
            self._time_pair(method, prompt, self.cpu_share, reverse=index % 2 == 1)
            for index, prompt in enumerate(self.prompts)
        ]
        pairs = [pair for pair in pairs if not any(one.disturbed for one in pair)]
        if not pairs:
            raise LazyBenchError("other work on this machine disturbed every pass: stop it, or set cpu_share=0")
        unmodified, pruned = (fmean(one.ttft_s for one in passes) for passes in zip(*pairs, strict=True))
        trial = Trial(share, unmodified / pruned, len(pairs))
        self.bar.update()
        self.bar.set_postfix_str(f"{trial.speedup:.2f}x")
        rows = pd.DataFrame(sorted([*self.trials.values(), trial]))
        replace(self.file, rows.to_csv(index=False, float_format="%.17g", lineterminator="\n"))
        return trial

    def _time_pair(self, method: Method, prompt: Prompt, cpu_share: float, reverse: bool = False) -> list[Pass]:
        """Time the unmodified model and the method on a prompt; `reverse` times the method first."""
        decode, order = Decoder(self.model, max_new_tokens=1), -1 if reverse else 1
        passes = [undisturbed(one, prompt, decode, 0, cpu_share) for one in (UNMODIFIED, method)[::order]]
        return passes[::order]


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
