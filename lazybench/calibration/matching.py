"""How strongly a method must prune for a TTFT speedup that is measured, not computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean

import pandas as pd

from lazybench.calibration.folder import csv
from lazybench.errors import LazyBenchError
from lazybench.methods import Method
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.timing import UNMODIFIED, Pass, timed, undisturbed
from lazybench.store import writing

# Of the prompt's tokens; what prunes more leaves nothing.
_MOST = 0.98
_MOST_TRIALS = 12
_DIGITS = 4


@dataclass(frozen=True)
class Trial:
    """A method at one strength, timed.

    Attributes:
        share: of the prompt's tokens that is pruned in the end.
        method: the method that prunes so much.
        speedup: mean TTFT of the unmodified model over the method's, on the same prompts, each pair side by side.
        prompts: how many prompts those are; pairs that other work disturbed are left out.
    """

    share: float
    method: Method
    speedup: float
    prompts: int


class OutOfReach(LazyBenchError):
    """A method is never so fast."""


class Speedups:
    """Measures a method at any strength; each strength once, kept in a file.

    Args:
        method: the method.
        prompts: what to time it on.
        decode: greedy generation of a single token.
        cpu_share: a pass on a CPU that got less of wall time times threads is taken again.
        kept: the file: a CSV, a row a strength.
        tick: called with each trial.
    """

    def __init__(
        self,
        method: Method,
        prompts: Sequence[Prompt],
        decode: Decoder,
        cpu_share: float,
        kept: Path,
        tick: Callable[[Trial], None] = lambda _: None,
    ) -> None:
        self._method, self._prompts, self._kept, self._tick = method, prompts, kept, tick
        self._decode = replace(decode, max_new_tokens=1)
        self._cpu_share = cpu_share
        self.trials: dict[float, Trial] = {}
        for row in pd.read_csv(kept).itertuples() if kept.exists() else ():
            self.trials[row.pruned] = Trial(row.pruned, method.pruning(row.pruned), row.ttft_speedup, row.prompts)

    def at(self, share: float) -> Trial:
        """The method where it prunes such a share of the prompt, timed.

        Raises:
            LazyBenchError: other work on the machine disturbed every pass.
        """
        share = round(share, _DIGITS)
        if share not in self.trials:
            method = self._method.pruning(share)
            method.prepare(self._decode.model)
            self._pair(method, self._prompts[0], False, least=0)  # untimed
            pairs = [self._pair(method, prompt, turn % 2 == 1) for turn, prompt in enumerate(self._prompts)]
            pairs = [pair for pair in pairs if not any(done.disturbed for done in pair)]
            if not pairs:
                raise LazyBenchError("other work on this machine disturbed every pass: stop it, or set cpu_share=0")
            before, after = (fmean(done.ttft_s for done in of) for of in zip(*pairs, strict=True))
            self.trials[share] = Trial(share, method, before / after, len(pairs))
            self._tick(self.trials[share])
            rows = [
                {
                    "pruned": trial.share,
                    "settings": differing(trial.method, self._method),
                    "ttft_speedup": trial.speedup,
                    "prompts": trial.prompts,
                }
                for _, trial in sorted(self.trials.items())
            ]
            writing.replace(self._kept, csv(pd.DataFrame(rows)))
        return self.trials[share]

    def _pair(self, method: Method, prompt: Prompt, backwards: bool, least: float | None = None) -> tuple[Pass, Pass]:
        """A pass of the unmodified model and one of the method on a prompt; `backwards` takes the method's first."""

        def take(of: Method) -> Pass:
            share = self._cpu_share if least is None else least
            return undisturbed(lambda: timed(of, prompt, self._decode, 0), self._decode.model.device, share)

        first, second = (take(of) for of in ((method, UNMODIFIED) if backwards else (UNMODIFIED, method)))
        return (second, first) if backwards else (first, second)


def differing(method: Method, given: Method) -> str:
    """What differs from the method that was given, of what its repr shows."""
    shown = [of.name for of in fields(method) if of.repr]
    differs = [f"{key}={getattr(method, key)}" for key in shown if getattr(method, key) != getattr(given, key)]
    return ", ".join(differs) or "the settings as they were given"


def match(speedups: Speedups, wanted: float, tolerance: float) -> Trial:
    """The trial whose speedup is as wanted, or the nearest after a number of them.

    Args:
        speedups: measures the method; what it has measured already is made use of.
        wanted: the speedup, above 1.
        tolerance: as near is near enough, as a fraction of `wanted`.

    Raises:
        OutOfReach: the method is slower than that however much it prunes.
    """

    def nearest() -> Trial | None:
        return min(speedups.trials.values(), key=lambda trial: abs(trial.speedup / wanted - 1), default=None)

    for turn in range(_MOST_TRIALS):
        near = nearest()
        if near is not None and abs(near.speedup / wanted - 1) <= tolerance:
            return near
        share = _next(sorted(speedups.trials.values(), key=lambda trial: trial.share), wanted, halving=turn % 3 == 2)
        if round(share, _DIGITS) in speedups.trials:
            break
        speedups.at(share)
    strongest = speedups.trials[max(speedups.trials)]
    if strongest.share == _MOST and max(of.speedup for of in speedups.trials.values()) < (1 - tolerance) * wanted:
        raise OutOfReach(
            f"method {strongest.method.name}: with {_MOST:.0%} of the prompt pruned its TTFT speedup is "
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
