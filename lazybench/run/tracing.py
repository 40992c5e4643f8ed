"""Untimed passes that look inside: what the figures and the fidelity measures are made of."""

from dataclasses import asdict, replace
from typing import Any

import torch

import lazyllm
from lazybench.data import Record
from lazybench.errors import RecordFailure, one_line
from lazybench.methods.base import answer
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.bench import Bench
from lazybench.run.divergence import Expected, divergence, expected
from lazybench.run.job import Job
from lazybench.store.run_folder import digest
from lazyllm import LazyLLMError, Stats

_BINS = 200
_SHARES = 101
# Answers of one unmodified model that are kept for the next job, by its digest and the prompt's; each takes megabytes.
_MOST_KNOWN = 200
_known: dict[str, dict[str, Expected]] = {}


def trace(bench: Bench, record: Record) -> dict[str, Any]:
    """What one record's trace says.

    Returns:
        `_id`, `dataset`, `error` where the method cannot run, and
        `kl` and `first_token_kl`: KL divergence of the method's distribution of the next token from the unmodified
        model's, in nats: the mean over the first tokens of that model's answer, and of the first alone; for methods
        with several seeds, their mean;
        and of the records that are timed (`timing.every`),
        `stages` and `computed`, for methods on the engine with stages: by step and stage, the fraction of prompt
        tokens that have keys and values in the layers after it (paper, Figure 7);
        `attention`, for the baseline: the newest token's attention by layer (paper, Figure 2).
    """
    traced: dict[str, Any] = {"_id": record.id, "dataset": record.dataset}
    try:
        prompt = bench.job.prompt(record)
        return traced | bench.attempt(prompt, lambda decode: _traced(bench, prompt, decode))
    except (RecordFailure, LazyLLMError) as failure:
        return traced | {"error": one_line(str(failure))}


def _traced(bench: Bench, prompt: Prompt, decode: Decoder) -> dict[str, Any]:
    job, method = bench.job, bench.job.method
    inside = job.times(prompt.record)
    if job.is_baseline:
        traced = {"first_token_kl": 0.0, "kl": 0.0}
        return traced | ({"attention": _attention(prompt, replace(decode, max_new_tokens=1))} if inside else {})
    unmodified = _unmodified(job, prompt, decode)
    found = [divergence(method, prompt, decode, unmodified, seed) for seed in range(method.repeats)]
    kls = torch.stack([of_seed for of_seed, _ in found]).mean(0)
    traced = {"first_token_kl": float(kls[0]), "kl": float(kls.mean())}
    stats = found[0][1].stats
    if stats is None or not stats.stages or not inside:
        return traced
    return traced | _progress(answer(method, prompt, replace(decode, tracing=True), seed=0).stats)


def _unmodified(job: Job, prompt: Prompt, decode: Decoder) -> Expected:
    """What the unmodified model answers; the jobs of a sweep ask it once about a record."""
    model = digest({key: job.settings[key] for key in ("model", "weights")})
    if model not in _known:
        _known.clear()
    known = _known.setdefault(model, {})
    key = digest({"facts": asdict(prompt.builder.facts), "ids": prompt.ids.tolist()})
    found = known.get(key) or expected(prompt, decode)
    if len(known) < _MOST_KNOWN:
        known[key] = found
    return found


def _progress(stats: Stats) -> dict[str, Any]:
    """By step and stage, the fraction of prompt tokens computed so far in the layer after it."""
    so_far, by_step = [0] * len(stats.stages), []
    for step in stats.computed:
        # A token is computed once in a layer, so counting the new ones is enough.
        for index, layer in enumerate(stats.stages):
            so_far[index] += int((step[layer + 1] < stats.prompt_length).sum())
        by_step.append([round(count / stats.prompt_length, 5) for count in so_far])
    return {"stages": stats.stages, "computed": by_step}


def _attention(prompt: Prompt, decode: Decoder) -> dict[str, Any]:
    # For good: a model with states takes no other way, and nothing is pruned here.
    for_good = lazyllm.Importance(for_good=True)
    with lazyllm.enable(decode.model, lazyllm.PruningSchedule(), selection=for_good, record_importance=True) as lazy:
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
        "map": [[float(f"{value:.3g}") for value in row] for row in binned.tolist()],
        "sorted_mass": [round(value, 5) for value in mass.tolist()],
    }
