"""Untimed passes that look inside: what the figures and the fidelity measures are made of."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch

import lazyllm
from lazybench.data.record import Record
from lazybench.errors import RecordFailure
from lazybench.methods.base import Output, answer
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.bench import Bench
from lazyllm import LazyLLMError, Stats

_BINS = 200
_SHARES = 101


def trace(bench: Bench, record: Record) -> dict[str, Any]:
    """What one record's trace says.

    Returns:
        `_id`, `dataset`, `error` where the method cannot run, and
        `first_token_kl`: KL divergence of the method's distribution of the first new token from the unmodified
        model's, in nats; for methods with several seeds, their mean;
        `stages` and `computed`, for methods on the engine with stages: by step and stage, the fraction of prompt
        tokens that have keys and values in the layers after it (paper, Figure 7);
        `attention`, for the baseline: the newest token's attention by layer (paper, Figure 2).
    """
    prompt = bench.prompt(record)
    traced: dict[str, Any] = {"_id": record.id, "dataset": record.dataset}
    try:
        return traced | bench.attempt(prompt, lambda: _traced(bench, prompt))
    except (RecordFailure, LazyLLMError) as failure:
        return traced | {"error": str(failure)}


def _traced(bench: Bench, prompt: Prompt) -> dict[str, Any]:
    if bench.is_baseline:
        return {"first_token_kl": 0.0, "attention": _attention(bench, prompt)}
    unmodified = _tracing(bench, prompt, new_tokens=1)
    unmodified(prompt.ids)
    divergences, progress = [], {}
    for seed in range(bench.method.repeats):
        # What is computed by step takes a whole answer, which one seed shows; the rest is about the first token.
        decode = _tracing(bench, prompt, new_tokens=None if seed == 0 else 1)
        output = answer(bench.method, prompt, decode, seed)
        divergences.append(_divergence(unmodified.first_logits, decode.first_logits))
        progress = progress or _progress(output)
    return {"first_token_kl": fmean(divergences)} | progress


def _tracing(bench: Bench, prompt: Prompt, new_tokens: int | None = None) -> Decoder:
    decode = bench.decoder(prompt)
    decode.tracing = True
    if new_tokens is not None:
        decode.max_new_tokens = new_tokens
    return decode


def _divergence(baseline: torch.Tensor, method: torch.Tensor) -> float:
    """KL(baseline || method) of two next-token distributions given as logits (vocabulary,), in nats."""
    expected, found = baseline.double().log_softmax(-1), method.double().log_softmax(-1)
    return max(0.0, float((expected.exp() * (expected - found)).sum()))


def _progress(output: Output) -> dict[str, Any]:
    stats = output.stats
    if stats is None or not stats.stages:
        return {}
    behind = [layer + 1 for layer in stats.stages]
    return {"stages": stats.stages, "computed": _computed(stats, behind)}


def _computed(stats: Stats, layers: list[int]) -> list[list[float]]:
    """By step and layer, the fraction of prompt tokens computed there so far."""
    so_far, by_step = [0] * len(layers), []
    for step in stats.computed:
        # A token is computed once in a layer, so counting the new ones is enough.
        for index, layer in enumerate(layers):
            so_far[index] += int((step[layer] < stats.prompt_length).sum())
        by_step.append([round(count / stats.prompt_length, 5) for count in so_far])
    return by_step


def _attention(bench: Bench, prompt: Prompt) -> dict[str, Any]:
    decode = _tracing(bench, prompt, new_tokens=1)
    with lazyllm.enable(bench.model, lazyllm.PruningSchedule(), record_importance=True) as lazy:
        decode(prompt.ids)
    importance = torch.stack(lazy.stats.importance).double().cpu()
    layers, tokens = importance.shape
    bins = min(_BINS, tokens)
    place = torch.arange(tokens) * bins // tokens
    binned = torch.zeros(layers, bins, dtype=torch.float64).index_add_(1, place, importance)
    mass = importance.sort(dim=1, descending=True).values.cumsum(1)
    at = torch.linspace(0, tokens, _SHARES).round().long()
    mass = torch.cat([torch.zeros(layers, 1, dtype=mass.dtype), mass], dim=1)[:, at].mean(0)
    return {
        "layers": layers,
        "bins": bins,
        "map": [[float(f"{value:.3g}") for value in row] for row in binned.tolist()],
        "sorted_mass": [round(value, 5) for value in mass.tolist()],
    }
