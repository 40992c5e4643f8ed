"""What a schedule would ideally gain, from the unmodified model's time against token count, measured once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from scipy.optimize import nnls
from transformers import PreTrainedModel

from lazybench.model.decoding import synchronize
from lazyllm import PruningSchedule

# Token counts to time, as parts of the longest prompt.
_PARTS = (1, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0625)
_LEAST = 16
_ROUNDS = 3


@dataclass(frozen=True)
class Times:
    """The unmodified model's prefilling: seconds for `n` tokens are `fixed + linear * n + quadratic * n**2`.

    Attributes:
        fixed: seconds, whatever the prompt.
        linear: seconds a token.
        quadratic: seconds a pair of tokens.
        layers: number of decoder layers.
    """

    fixed: float
    linear: float
    quadratic: float
    layers: int

    @classmethod
    def fit(cls, tokens: Sequence[int], seconds: Sequence[float], layers: int) -> Times:
        """The curve with non-negative parts that is nearest to measured times, each by its relative error."""
        counts, measured = np.asarray(tokens, dtype=float), np.asarray(seconds, dtype=float)
        terms = np.stack([np.ones_like(counts), counts, counts**2], axis=1) / measured[:, None]
        # Of one size, which is what the solver expects.
        sizes = terms.max(axis=0)
        found, _ = nnls(terms / sizes, np.ones_like(measured))
        return cls(*(float(value) for value in found / sizes), layers)

    def seconds(self, tokens: int) -> float:
        """Time to prefill `tokens` tokens with every layer."""
        return self.fixed + self.linear * tokens + self.quadratic * tokens**2

    def speedup(self, schedule: PruningSchedule, lengths: Sequence[int]) -> float:
        """Ideal TTFT speedup of a schedule over prompts of these lengths.

        Each layer takes its share of the unmodified model's time at the layer's token count, as in
        `lazybench speed`; the speedup is the sum over prompts of the unmodified model's time over that of what is left.
        """
        counts = Counter(lengths)
        whole = sum(count * self.seconds(tokens) for tokens, count in counts.items())
        return whole / sum(count * self._pruned(schedule, tokens) for tokens, count in counts.items())

    def _pruned(self, schedule: PruningSchedule, tokens: int) -> float:
        total, start, left = 0.0, 0, tokens
        for stage in schedule.stages:
            total += (stage.layer + 1 - start) * self.seconds(left)
            start, left = stage.layer + 1, stage.kept(left)
        return (total + (self.layers - start) * self.seconds(left)) / self.layers


@torch.no_grad()
def measure(model: PreTrainedModel, ids: torch.Tensor) -> dict[int, float]:
    """Seconds that the unmodified model takes for its first token, by how many tokens of a prompt it is given.

    Args:
        model: the model.
        ids: the prompt's token ids, int64 (1, tokens).

    Returns:
        the median of three, after an untimed round.
    """
    longest = ids.shape[1]
    counts = sorted({min(longest, max(_LEAST, int(part * longest))) for part in _PARTS})
    taken: dict[int, list[float]] = {count: [] for count in counts}
    for round_ in range(_ROUNDS + 1):
        for count in counts:
            part = ids[:, :count].to(model.device)
            synchronize(model.device)
            start = time.perf_counter()
            model(part, use_cache=True, logits_to_keep=1)
            synchronize(model.device)
            if round_:
                taken[count].append(time.perf_counter() - start)
    return {count: median(seconds) for count, seconds in taken.items()}
