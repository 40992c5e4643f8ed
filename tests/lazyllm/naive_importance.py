"""`lazyllm.AttentionRanking` written a second time, densely and slowly, for Llama-shaped models.

The engine is the definition's, as in `reference`: query positions are computed from their stored hidden state and
attend to the active members at or before them.
"""

import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

import lazyllm
from lazyllm import reference

# Each part of `lazyllm.AttentionRanking` by itself, and all of them.
ALONE = {
    "queries": {"queries": 4},
    "half_life": {"queries": 4, "half_life": 1.5},
    "pooling": {"pooling": 3},
    "layers": {"layers": 2},
    "first": {"first": 3},
    "bonus": {"bonus": 1.5},
    "every": {"every": 3},
}
ALL = {"queries": 3, "half_life": 2.0, "pooling": 3, "layers": 2, "first": 1, "bonus": 1.05, "every": 2}


@torch.no_grad()
def run(
    model: PreTrainedModel,
    prompt: list[int],
    stages: list[tuple[int, float]],
    ranking: lazyllm.AttentionRanking,
    new_tokens: int,
    turns: Sequence[list[int]] = (),
) -> reference.Trace:
    """Generate greedily with the settings of `ranking`, on a model that `reference.run` takes.

    Each of `turns` follows the answer before it, and is answered with `new_tokens` more.
    """
    keep_after = {layer: keep for layer, keep in stages if keep < 1}  # one that keeps everything is none
    layers, tokens, trace = model.model.layers, list(prompt), reference.Trace()
    hidden: dict[int, torch.Tensor] = {}  # position -> input of the first layer it has no key and value in
    cached: list[dict[int, tuple[torch.Tensor, torch.Tensor]]] = [{} for _ in layers]
    queries: list[dict[int, torch.Tensor]] = [{} for _ in layers]  # by layer and position, oldest first
    kept: dict[int, list[int]] = {}  # by stage: the active positions after it
    num_single = 0  # steps of one token since the last of several
    for step in range(new_tokens * (1 + len(turns))):
        if step and step % new_tokens == 0:
            tokens += turns[step // new_tokens - 1]
        computed, newest = len(cached[0]), len(tokens) - 1
        num_single = num_single + 1 if 0 < computed == newest else 0
        active = list(range(len(tokens)))
        hidden |= {position: model.model.embed_tokens.weight[tokens[position]] for position in active[computed:]}
        trace.computed.append([])
        trace.active.append([])
        for index, layer in enumerate(layers):
            computed_now = [position for position in active if position not in cached[index]]
            trace.computed[-1].append(computed_now)
            trace.active[-1].append(active)
            for position in computed_now:
                query, key, value = reference.project(model, layer, hidden[position], position)
                cached[index][position] = key, value
                if position >= computed:  # revived tokens had their query when they were new
                    queries[index][position] = query
                visible = [cached[index][other] for other in active if other <= position]
                middle = hidden[position] + reference.attend(layer, query, visible)[0]
                hidden[position] = middle + reference.mlp(layer, middle)
            if index in keep_after and num_single % ranking.every:
                active = kept[index] = [*kept[index], newest]
            elif index in keep_after:
                before = max((stage for stage in keep_after if stage < index), default=-1)
                span = range(max(before + 1, index - ranking.layers + 1), index + 1)
                by_layer = [_of_layer(layers[other], queries[other], cached[other], active, ranking) for other in span]
                importance = _pooled(torch.stack(by_layer).amax(dim=0), active, ranking.pooling)
                uncomputed = {position for position in active if position not in cached[index + 1]}
                count = max(1, math.ceil(keep_after[index] * len(active) - 1e-9))
                active = kept[index] = _survivors(
                    importance, count, newest, len(prompt), ranking, uncomputed if computed else set()
                )
        tokens.append(int(model.lm_head(model.model.norm(hidden[newest])).argmax()))
        trace.tokens.append(tokens[-1])
    return trace


def _of_layer(layer, queries, cached, active, ranking):
    """Return the importance of the active tokens in one layer, (active,), over its newest queries and its heads."""
    window = list(queries)[-ranking.queries :]
    weights = [0.5 ** (age / (ranking.half_life or math.inf)) for age in range(len(window))][::-1]
    latest = queries[window[-1]]
    by_head = latest.new_zeros(len(latest), len(active))
    for weight, position in zip(weights, window, strict=True):
        visible = [cached[other] for other in active if other <= position]
        if visible:  # a query older than all active tokens sees none
            attention = reference.attend(layer, queries[position], visible)[1]
            by_head[:, : len(visible)] += weight / sum(weights) * attention
    return by_head.mean(dim=0)


def _pooled(importance, active, pooling):
    """Return importance by position, each the mean over the active ones within half a window."""
    by_position = dict(zip(active, importance.tolist(), strict=True))
    if pooling == 1:
        return by_position
    near = {token: [by_position[other] for other in active if abs(other - token) <= pooling // 2] for token in active}
    return {token: sum(values) / len(values) for token, values in near.items()}


def _survivors(importance, count, newest, prompt_length, ranking, uncomputed):
    """Return the kept positions: protected ones from new to old, then by importance; less of the `uncomputed` ones."""

    def rank(position):
        if position > newest - ranking.queries or position < min(ranking.first, prompt_length):
            return 0, -position
        return 1, -importance[position] / (ranking.bonus if position in uncomputed else 1)

    return sorted(sorted(importance, key=rank)[:count])
