"""Untimed passes that look inside: what the figures and the fidelity measures are made of."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

import lazyllm
from lazybench.data import Record
from lazybench.errors import RecordFailure
from lazybench.methods.base import answer
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
    prompt = bench.job.prompt(record)
    traced: dict[str, Any] = {"_id": record.id, "dataset": record.dataset}
    try:
        return traced | bench.attempt(prompt, lambda decode: _traced(bench, prompt, replace(decode, tracing=True)))
    except (RecordFailure, LazyLLMError) as failure:
        return traced | {"error": str(failure)}


def _traced(bench: Bench, prompt: Prompt, decode: Decoder) -> dict[str, Any]:
    first = replace(decode, max_new_tokens=1)
    if bench.job.is_baseline:
        return {"first_token_kl": 0.0, "attention": _attention(prompt, first)}
    first(prompt.ids)
    unmodified, divergences, progress = first.first_logits, [], {}
    for seed in range(bench.job.method.repeats):
        # What is computed by step takes a whole answer, which one seed shows; the rest is about the first token.
        of_seed = decode if seed == 0 else first
        output = answer(bench.job.method, prompt, of_seed, seed)
        divergences.append(_divergence(unmodified, of_seed.first_logits))
        progress = progress or _progress(output.stats)
    return {"first_token_kl": fmean(divergences)} | progress


def _divergence(baseline: torch.Tensor, method: torch.Tensor) -> float:
    """KL(baseline || method) of two next-token distributions given as logits (vocabulary,), in nats."""
    expected, found = baseline.double().log_softmax(-1), method.double().log_softmax(-1)
    return max(0.0, float((expected.exp() * (expected - found)).sum()))


def _progress(stats: Stats | None) -> dict[str, Any]:
    """By step and stage, the fraction of prompt tokens computed so far in the layer after it."""
    if stats is None or not stats.stages:
        return {}
    so_far, by_step = [0] * len(stats.stages), []
    for step in stats.computed:
        # A token is computed once in a layer, so counting the new ones is enough.
        for index, layer in enumerate(stats.stages):
            so_far[index] += int((step[layer + 1] < stats.prompt_length).sum())
        by_step.append([round(count / stats.prompt_length, 5) for count in so_far])
    return {"stages": stats.stages, "computed": by_step}


def _attention(prompt: Prompt, decode: Decoder) -> dict[str, Any]:
    with lazyllm.enable(decode.model, lazyllm.PruningSchedule(), record_importance=True) as lazy:
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
