"""How strongly a method must prune to be so much faster: by its measured time to first token, or by its operations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.calibration.study import csv
from lazybench.errors import LazyBenchError
from lazybench.methods import Method
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.model.work import operations, unpruned_operations
from lazybench.run.timing import UNMODIFIED, Pass, undisturbed
from lazybench.store.writing import replace

_MOST = 0.98  # of the prompt's tokens; what prunes more leaves nothing
_MOST_TRIALS = 12
_DIGITS = 4


class Trial(NamedTuple):
    """A method that prunes such a share of the prompt's tokens in the end, and its speedup on so many prompts."""

    share: float
    speedup: float
    prompts: int

    def off(self, wanted: float) -> float:
        """How far its speedup is from what is wanted, as a fraction of that."""
        return abs(self.speedup / wanted - 1)


class OutOfReach(LazyBenchError):
    """A method is never so fast."""


@dataclass
class Operations:
    """By the operations before the first token: the unmodified model's over the method's, summed over prompts."""

    method: Method
    lengths: Sequence[int]
    model: PreTrainedModel
    trials: dict[float, Trial] = field(default_factory=dict)

    def at(self, share: float) -> None:
        """Try the method where it prunes such a share of the prompt."""
        method = self.method.pruning(share)
        pruned = [of for tokens in self.lengths for of in method.layer_tokens(self.model, tokens)]
        speedup = unpruned_operations(self.model, self.lengths) / operations(self.model, pruned)
        self.trials[share] = Trial(share, speedup, len(self.lengths))


@dataclass
class Timed:
    """By the mean TTFT of the unmodified model over the method's, each pair side by side.

    Pairs that other work disturbed are left out. Each strength is timed once and kept in a CSV, a row a strength.
    """

    method: Method
    prompts: Sequence[Prompt]
    model: PreTrainedModel
    cpu_share: float
    kept: Path
    bar: tqdm

    def __post_init__(self) -> None:
        self._decode = Decoder(self.model, max_new_tokens=1)
        rows = pd.read_csv(self.kept).itertuples(index=False) if self.kept.exists() else ()
        self.trials = {row.share: Trial(*row) for row in rows}

    def at(self, share: float) -> None:
        """Time the method where it prunes such a share of the prompt."""
        method = self.method.pruning(share)
        method.prepare(self.model)
        self._pair(method, self.prompts[0], least=0)  # untimed
        pairs = [self._pair(method, prompt, self.cpu_share, turn % 2) for turn, prompt in enumerate(self.prompts)]
        pairs = [pair for pair in pairs if not any(done.disturbed for done in pair)]
        if not pairs:
            raise LazyBenchError("other work on this machine disturbed every pass: stop it, or set cpu_share=0")
        before, after = (fmean(done.ttft_s for done in of) for of in zip(*pairs, strict=True))
        self.trials[share] = Trial(share, before / after, len(pairs))
        self.bar.update()
        self.bar.set_postfix_str(f"{before / after:.2f}x")
        replace(self.kept, csv(pd.DataFrame(sorted(self.trials.values())), digits=17))

    def _pair(self, method: Method, prompt: Prompt, least: float, backwards: int = 0) -> list[Pass]:
        """A pass of the unmodified model and one of the method on a prompt; `backwards` takes the method's first."""
        order = -1 if backwards else 1
        passes = [undisturbed(of, prompt, self._decode, 0, least) for of in (UNMODIFIED, method)[::order]]
        return passes[::order]


def match(speedups: Operations | Timed, wanted: float, tolerance: float) -> Trial:
    """The trial whose speedup, above 1, is as wanted within a fraction of it, or the nearest after a number of them.

    The `trials` of `speedups` are those asked for so far, by their share.

    Raises:
        OutOfReach: the method is slower than that however much it prunes.
    """
    trials = speedups.trials  # to which `at` adds

    def nearest() -> Trial:
        return min(trials.values(), key=lambda trial: trial.off(wanted))

    for turn in range(_MOST_TRIALS):
        share = round(_next(sorted(trials.values()), wanted, halving=turn % 3 == 2), _DIGITS)
        if (trials and nearest().off(wanted) <= tolerance) or share in trials:
            break
        speedups.at(share)
    strongest = max(trials.values())
    if strongest.share == _MOST and max(of.speedup for of in trials.values()) < (1 - tolerance) * wanted:
        raise OutOfReach(
            f"method {speedups.method.name}: with {_MOST:.0%} of the prompt pruned its speedup is "
            f"{strongest.speedup:.2f}, so {wanted:g} is out of reach: prune at an earlier layer, or ask for less"
        )
    return nearest()


def _next(known: Sequence[Trial], wanted: float, halving: bool) -> float:
    """The share to try next: between the nearest two around what is wanted, in the reciprocal of the speedup."""
    below = max((trial.share for trial in known if trial.speedup < wanted), default=0.0)
    above = min((trial for trial in known if trial.share > below), key=lambda trial: trial.share, default=None)
    if above is None:
        return min(_MOST, 1 - 1 / wanted if not known else (1 + below) / 2)
    slow = next((1 / trial.speedup for trial in known if trial.share == below), 1.0)
    if halving or above.speedup <= 1 / slow:
        return (below + above.share) / 2
    return below + (above.share - below) * (slow - 1 / wanted) / (slow - 1 / above.speedup)
