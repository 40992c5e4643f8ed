"""What pruning would ideally gain: from a model's time against token count, and a decode step's against rows."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from transformers import PreTrainedModel

import lazyllm
from lazybench.model.decoding import synchronize
from lazyllm import PruningSchedule

# Token counts to time, as parts of the longest prompt, and rows of a decode step: the newest token and revived ones.
_PARTS = (1, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0625)
_LEAST = 16
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
_ROUNDS = 3
PROMPT, STEP, UNMODIFIED_STEP = "prompt", "step", "unmodified step"


@dataclass(frozen=True)
class Times:
    """A model's times.

    Prefilling `n` tokens takes the unmodified model `fixed + linear * n + quadratic * n**2` seconds.
    """

    fixed: float
    linear: float
    quadratic: float
    layers: int
    # Seconds of LazyLLM's decode step that computes so many rows in every layer, by their number, increasing.
    step: Mapping[int, float]
    unmodified_step: float  # seconds of the unmodified model's decode step

    @classmethod
    def fit(cls, measured: Mapping[str, Mapping[int, float]], layers: int) -> "Times":
        """The curve with non-negative parts that is nearest to what `measure` gave, each by its relative error."""
        step, prompt = dict(sorted(measured[STEP].items())), measured[PROMPT]
        counts, seconds = np.asarray(list(prompt), dtype=float), np.asarray(list(prompt.values()))
        terms = np.stack([np.ones_like(counts), counts, counts**2], axis=1) / seconds[:, None]
        # Of one size, which is what the solver expects.
        sizes = terms.max(axis=0)
        found, _ = nnls(terms / sizes, np.ones_like(seconds))
        return cls(*(float(value) for value in found / sizes), layers, step, measured[UNMODIFIED_STEP][1])

    def seconds(self, tokens: int) -> float:
        """Time to prefill `tokens` tokens with every layer."""
        return self.fixed + self.linear * tokens + self.quadratic * tokens**2

    def step_of(self, rows: torch.Tensor) -> float:
        """Ideal mean time of decode steps that compute so many rows in each layer, (steps, layers).

        Each layer takes its share of the time of a step with that many rows in every layer. Beyond the most rows that
        were measured, a row takes what it takes on average up to there. Without a step, that of one which revives
        nothing.
        """
        if not len(rows):
            return self.step[1]
        most, counts = max(self.step), rows.numpy()
        beyond = (self.step[most] - self.step[1]) / max(1, most - 1)
        found = np.interp(counts, list(self.step), list(self.step.values()))
        return float((found + beyond * np.maximum(0, counts - most)).mean())

    def whole(self, tokens: int, answer_tokens: int) -> float:
        """Time of the unmodified model's whole generation of so many tokens."""
        return self.seconds(tokens) + (answer_tokens - 1) * self.unmodified_step

    def pruned(self, schedule: PruningSchedule, tokens: int, answer_tokens: int, step_s: float) -> float:
        """Ideal time of a whole generation whose mean decode step takes `step_s` seconds."""
        total, start, left = 0.0, 0, tokens
        for stage in schedule.stages:
            total += (stage.layer + 1 - start) * self.seconds(left)
            start, left = stage.layer + 1, stage.kept(left)
        prefilled = (total + (self.layers - start) * self.seconds(left)) / self.layers
        return prefilled + (answer_tokens - 1) * step_s

    def speedup(
        self, schedule: PruningSchedule, lengths: Sequence[int], answer_tokens: int = 1, step_s: float | None = None
    ) -> float:
        """Ideal speedup of whole generations on prompts of `lengths` tokens, of their summed times.

        In prefilling, each layer takes its share of the unmodified model's time at the layer's token count, as in
        `lazybench speed`. `step_s` is the schedule's mean decode step, None where nothing is revived.
        """
        step_s = self.step[1] if step_s is None else step_s
        whole = sum(self.whole(tokens, answer_tokens) for tokens in lengths)
        return whole / sum(self.pruned(schedule, tokens, answer_tokens, step_s) for tokens in lengths)


@torch.no_grad()
def measure(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, dict[int, float]]:
    """Medians of three, after an untimed round, in seconds, on a prompt's token ids, int64 (1, tokens).

    Returns:
        `prompt`: what the unmodified model takes for its first token, by how many tokens of the prompt it is given;
        `step`: what LazyLLM takes for a decode step at the prompt's end, by the rows it computes in every layer, all
        tokens being kept; `unmodified step`: what the unmodified model takes for one there, of one row.
    """
    longest = ids.shape[1]
    counts = sorted({min(longest, max(_LEAST, int(part * longest))) for part in _PARTS})
    rows = [n for n, used in zip(_ROWS, accumulate(_ROWS), strict=True) if used <= longest // 2] or [1]
    ids = ids.to(model.device)

    def take(tokens: torch.Tensor, cache: Any = None) -> tuple[float, Any]:
        synchronize(model.device)
        start = time.perf_counter()
        output = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        synchronize(model.device)
        return time.perf_counter() - start, output.past_key_values

    def once() -> dict[str, dict[int, float]]:
        taken = {PROMPT: {count: take(ids[:, :count])[0] for count in counts}, STEP: {}}
        # The prompt's last tokens come in steps of so many rows, so that no more positions are needed than it has.
        start, *pieces = ids.split([longest - sum(rows), *rows], dim=1)
        taken[UNMODIFIED_STEP] = {1: take(pieces[0], take(start)[1])[0]}
        with lazyllm.enable(model, ()):
            _, cache = take(start)
            for count, piece in zip(rows, pieces, strict=True):
                taken[STEP][count], cache = take(piece, cache)
        return taken

    first, *rounds = [once() for _ in range(1 + _ROUNDS)]
    return {what: {n: median(of[what][n] for of in rounds) for n in by} for what, by in first.items()}
