"""Trace records for the figures: computed tokens by stage, attention by layer."""

from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

import lazyllm
from lazybench.model.decoding import Decoder, Question
from lazyllm import Stats

_BINS = 200
_SHARES = 101


def progress(stats: Stats | None) -> dict[str, Any]:
    """Return the data of the paper's Figure 7: `stages`, and `computed[step][stage]`; empty without stages.

    `computed` is the fraction of the prompt with a KV entry after the stage.
    """
    if stats is None or not stats.stages:
        return {}
    so_far, by_step = [0] * len(stats.stages), []
    for step in stats.computed:
        # A token is computed once in a layer, so counting the new ones is enough.
        for index, layer in enumerate(stats.stages):
            so_far[index] += int((step[layer + 1] < stats.prompt_length).sum())
        by_step.append([round(count / stats.prompt_length, 5) for count in so_far])
    return {"stages": stats.stages, "computed": by_step}


def attention(model: PreTrainedModel, question: Question) -> dict[str, Any]:
    """Return the unmodified model's `attention` from the last prompt token in each layer (paper, Figure 2).

    `map` is the attention probability, mean over heads, summed over equal parts of the prompt, (layers, parts).
    `sorted_mass` is the attention on the top 0 to 100% of the tokens, mean over layers.
    """
    # Without revival, as models with states require; nothing is pruned here.
    ranking = lazyllm.AttentionRanking(revive=False)
    question = question._replace(stops=replace(question.stops, max_new_tokens=1))
    with lazyllm.enable(model, lazyllm.PruningSchedule(), ranking=ranking, record_importance=True) as lazy:
        Decoder(model, [question])([question.prompt.ids])
    importance = torch.stack(lazy.stats.importance).double().cpu()
    layers, tokens = importance.shape
    bins = min(_BINS, tokens)
    bin_of = torch.arange(tokens) * bins // tokens
    binned = torch.zeros(layers, bins, dtype=torch.float64).index_add_(1, bin_of, importance)
    mass = importance.sort(dim=1, descending=True).values.cumsum(1)
    counts = torch.linspace(0, tokens, _SHARES).round().long()
    mass = torch.cat([torch.zeros(layers, 1, dtype=mass.dtype), mass], dim=1)[:, counts].mean(0)
    by_layer = [[float(f"{value:.3g}") for value in row] for row in binned.tolist()]
    return {"attention": {"map": by_layer, "sorted_mass": [round(value, 5) for value in mass.tolist()]}}
