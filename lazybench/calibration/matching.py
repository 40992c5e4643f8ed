"""How strongly a method must prune for a TTFT speedup that is measured, not computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd
from transformers import PreTrainedModel

from lazybench.calibration.folder import csv
from lazybench.errors import LazyBenchError
from lazybench.methods import Method
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.timing import UNMODIFIED, Pass, timed, undisturbed
from lazybench.store.writing import replace

# Of the prompt's tokens; what prunes more leaves nothing.
_MOST = 0.98
_MOST_TRIALS = 12
_DIGITS = 4


class Trial(NamedTuple):
    """A method at one strength, timed.

    Attributes:
        share: of the prompt's tokens that is pruned in the end.
        speedup: mean TTFT of the unmodified model over the method's, on the same prompts, each pair side by side.
        prompts: how many prompts those are; pairs that other work disturbed are left out.
    """

    share: float
    speedup: float
    prompts: int


class OutOfReach(LazyBenchError):
    """A method is never so fast."""


class Speedups:
    """Measures a method at any strength; each strength once, kept in a file.

    Args:
        method: the method.
        prompts: what to time it on.
        model: the model.
        cpu_share: a pass on a CPU that got less of wall time times threads is taken again.
        kept: the file: a CSV, a row a strength.
        tick: called with what was timed and the speedup.
    """

    def __init__(
        self,
        method: Method,
        prompts: Sequence[Prompt],
        model: PreTrainedModel,
        cpu_share: float,
        kept: Path,
        tick: Callable[[Method, float], None],
    ) -> None:
        self.method = method
        self._prompts, self._cpu_share, self._kept, self._tick = prompts, cpu_share, kept, tick
        self._decode = Decoder(model, max_new_tokens=1)
        rows = pd.read_csv(kept).itertuples(index=False) if kept.exists() else ()
        self.trials = {row.share: Trial(*row) for row in rows}

    def at(self, share: float) -> Trial:
        """The method where it prunes such a share of the prompt, timed.

        Raises:
            LazyBenchError: other work on the machine disturbed every pass.
        """
        share = round(share, _DIGITS)
        if share not in self.trials:
            method = self.method.pruning(share)
            method.prepare(self._decode.model)
            self._pair(method, self._prompts[0], least=0)  # untimed
            pairs = [self._pair(method, prompt, self._cpu_share, turn % 2) for turn, prompt in enumerate(self._prompts)]
            pairs = [pair for pair in pairs if not any(done.disturbed for done in pair)]
            if not pairs:
                raise LazyBenchError("other work on this machine disturbed every pass: stop it, or set cpu_share=0")
            before, after = (fmean(done.ttft_s for done in of) for of in zip(*pairs, strict=True))
            self.trials[share] = Trial(share, before / after, len(pairs))
            self._tick(method, before / after)
            replace(self._kept, csv(pd.DataFrame(sorted(self.trials.values()))))
        return self.trials[share]

    def _pair(self, method: Method, prompt: Prompt, least: float, backwards: int = 0) -> list[Pass]:
        """A pass of the unmodified model and one of the method on a prompt; `backwards` takes the method's first."""
        order, device = (-1 if backwards else 1), self._decode.model.device
        passes = [
            undisturbed(partial(timed, of, prompt, self._decode, 0), device, least)
            for of in (UNMODIFIED, method)[::order]
        ]
        return passes[::order]


def match(speedups: Speedups, wanted: float, tolerance: float) -> Trial:
    """The trial whose speedup is as wanted, or the nearest after a number of them.

    Args:
        speedups: measures the method; what it has measured already is made use of.
        wanted: the speedup, above 1.
        tolerance: as near is near enough, as a fraction of `wanted`.

    Raises:
        OutOfReach: the method is slower than that however much it prunes.
    """

    trials = speedups.trials  # to which `at` adds

    def nearest() -> Trial:
        return min(trials.values(), key=lambda trial: abs(trial.speedup / wanted - 1))

    for turn in range(_MOST_TRIALS):
        share = _next(sorted(trials.values()), wanted, halving=turn % 3 == 2)
        if (trials and abs(nearest().speedup / wanted - 1) <= tolerance) or round(share, _DIGITS) in trials:
            break
        speedups.at(share)
    strongest = max(trials.values())
    if strongest.share == _MOST and max(of.speedup for of in trials.values()) < (1 - tolerance) * wanted:
        raise OutOfReach(
            f"method {speedups.method.name}: with {_MOST:.0%} of the prompt pruned its TTFT speedup is "
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
