"""Trace records in untimed passes: divergences, computed tokens by stage, attention by layer."""

from dataclasses import asdict, replace
from typing import Any

import torch

import lazyllm
from lazybench.data import Record
from lazybench.errors import RecordFailure, one_line
from lazybench.identity import digest
from lazybench.methods.base import answer
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.divergence import Expected, divergence, expected
from lazybench.run.prepare import Job
from lazybench.run.record_runner import RecordRunner
from lazyllm import LazyLLMError, Stats

_BINS = 200
_SHARES = 101
# Answers of one unmodified model that are cached for the next job, by digests of the model and prompt: megabytes each.
_CACHE_SIZE = 200
_cached: dict[str, dict[str, Expected]] = {}


def trace(runner: RecordRunner, record: Record) -> dict[str, Any]:
    """Return the trace of one record.

    Returns:
        `_id`, `dataset`, and `error` where the method cannot run; else
        `kl` and `first_token_kl`: KL(unmodified || method) of the next token in nats, as the mean over the first tokens
        of the unmodified model's answer and of the first alone, averaged over seeds;
        for a timed record of a method with stages, `stages` and `computed`: by step and stage, the fraction of prompt
        tokens that have keys and values in the layers after it (paper, Figure 7);
        for a timed record of the baseline, `attention`: the newest token's attention by layer (paper, Figure 2).
    """
    traced: dict[str, Any] = {"_id": record.id, "dataset": record.dataset}
    try:
        prompt = runner.job.prompt(record)
        return traced | runner.attempt(prompt, lambda decode: _traced(runner, prompt, decode))
    except (RecordFailure, LazyLLMError) as failure:
        return traced | {"error": one_line(str(failure))}


def _traced(runner: RecordRunner, prompt: Prompt, decode: Decoder) -> dict[str, Any]:
    job, method = runner.job, runner.job.method
    is_timed = job.is_timed(prompt.record)
    if job.is_baseline:
        traced = {"first_token_kl": 0.0, "kl": 0.0}
        return traced | ({"attention": _attention(prompt, replace(decode, max_new_tokens=1))} if is_timed else {})
    unmodified = _unmodified(job, prompt, decode)
    results = [divergence(method, prompt, decode, unmodified, seed) for seed in range(method.repeats)]
    kls = torch.stack([seed_kls for seed_kls, _ in results]).mean(0)
    traced = {"first_token_kl": float(kls[0]), "kl": float(kls.mean())}
    stats = results[0][1].stats
    if stats is None or not stats.stages or not is_timed:
        return traced
    return traced | _progress(answer(method, prompt, replace(decode, tracing=True), seed=0).stats)


def _unmodified(job: Job, prompt: Prompt, decode: Decoder) -> Expected:
    """Return the unmodified model's answer, which the jobs of a sweep generate once."""
    model = digest({key: job.settings[key] for key in ("model", "weights")})
    if model not in _cached:
        _cached.clear()
    cached = _cached.setdefault(model, {})
    key = digest({"facts": asdict(prompt.builder.facts), "ids": prompt.ids.tolist()})
    answer = cached.get(key) or expected(prompt, decode)
    if len(cached) < _CACHE_SIZE:
        cached[key] = answer
    return answer


def _progress(stats: Stats) -> dict[str, Any]:
    """Return, by step and stage, the fraction of prompt tokens computed so far in the layer after it."""
    so_far, by_step = [0] * len(stats.stages), []
    for step in stats.computed:
        # A token is computed once in a layer, so counting the new ones is enough.
        for index, layer in enumerate(stats.stages):
            so_far[index] += int((step[layer + 1] < stats.prompt_length).sum())
        by_step.append([round(count / stats.prompt_length, 5) for count in so_far])
    return {"stages": stats.stages, "computed": by_step}


def _attention(prompt: Prompt, decode: Decoder) -> dict[str, Any]:
    # `for_good` as a model with states asks for it; nothing is pruned here.
    for_good = lazyllm.AttentionRanking(for_good=True)
    with lazyllm.enable(decode.model, lazyllm.PruningSchedule(), ranking=for_good, record_importance=True) as lazy:
        decode(prompt.ids)
    importance = torch.stack(lazy.stats.importance).double().cpu()
    layers, tokens = importance.shape
    bins = min(_BINS, tokens)
    bin_of = torch.arange(tokens) * bins // tokens
    binned = torch.zeros(layers, bins, dtype=torch.float64).index_add_(1, bin_of, importance)
    mass = importance.sort(dim=1, descending=True).values.cumsum(1)
    counts = torch.linspace(0, tokens, _SHARES).round().long()
    mass = torch.cat([torch.zeros(layers, 1, dtype=mass.dtype), mass], dim=1)[:, counts].mean(0)
    return {
        "map": [[float(f"{value:.3g}") for value in row] for row in binned.tolist()],
        "sorted_mass": [round(value, 5) for value in mass.tolist()],
    }
