"""`lazyllm.AttentionRanking` written a second time, densely and slowly, for Llama-shaped models.

The engine is the definition's, as in `reference`: rows are computed from their stored hidden state and attend to the
active members at or before them.
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
    "heads": {"heads": "max"},
    "layers": {"layers": 2},
    "value_norm": {"value_norm": True},
    "first": {"first": 3},
    "last": {"last": 4},
    "bonus": {"bonus": 1.5},
    "cap": {"cap": 1},
}
ALL = {"queries": 3, "half_life": 2.0, "pooling": 3, "heads": "max", "layers": 2, "value_norm": True, "first": 1}
ALL |= {"last": 3, "bonus": 1.05, "cap": 2}


@torch.no_grad()
def run(
    model: PreTrainedModel,
    prompt: list[int],
    stages: list[tuple[int, float]],
    importance: lazyllm.AttentionRanking,
    new_tokens: int,
    turns: Sequence[list[int]] = (),
) -> reference.Trace:
    """Greedy generation with the parts of `importance` on a model that `reference.run` takes.

    Each of `turns` follows on the answer before it, and is answered with `new_tokens` more.
    """
    stages = [(layer, keep) for layer, keep in stages if keep < 1]  # one that keeps everything is none
    layers, tokens, trace = model.model.layers, list(prompt), reference.Trace()
    hidden: dict[int, torch.Tensor] = {}  # position -> input of the first layer it has no key and value in
    cached: list[dict[int, tuple[torch.Tensor, torch.Tensor]]] = [{} for _ in layers]
    asked: list[dict[int, torch.Tensor]] = [{} for _ in layers]  # a layer's queries, by position, oldest first
    for step in range(new_tokens * (1 + len(turns))):
        if step and step % new_tokens == 0:
            tokens += turns[step // new_tokens - 1]
        first_new, newest = len(cached[0]), len(tokens) - 1
        active = list(range(len(tokens)))
        hidden |= {position: model.model.embed_tokens.weight[tokens[position]] for position in active[first_new:]}
        trace.rows.append([])
        trace.active.append([])
        for index, layer in enumerate(layers):
            rows = [position for position in active if position not in cached[index]]
            trace.rows[-1].append(rows)
            trace.active[-1].append(active)
            for position in rows:
                query, key, value = reference.project(model, layer, hidden[position], position)
                cached[index][position] = key, value
                if position >= first_new:  # what is revived later asked when it was new
                    asked[index][position] = query
                seen = [cached[index][other] for other in active if other <= position]
                middle = hidden[position] + reference.attend(layer, query, seen)[0]
                hidden[position] = middle + reference.mlp(layer, middle)
            if index in dict(stages):
                before = max((stage for stage, _ in stages if stage < index), default=-1)
                span = range(max(before + 1, index - importance.layers + 1), index + 1)
                found = [_of_layer(layers[other], asked[other], cached[other], active, importance) for other in span]
                by_token = _pooled(torch.stack(found).amax(dim=0), active, importance.pooling)
                left = {position for position in active if position not in cached[index + 1]}
                count = max(1, math.ceil(dict(stages)[index] * len(active) - 1e-9))
                active = _survivors(by_token, count, newest, len(prompt), importance, left, first_new)
        tokens.append(int(model.lm_head(model.model.norm(hidden[newest])).argmax()))
        trace.tokens.append(tokens[-1])
    return trace


def _of_layer(layer, asked, cached, active, importance):
    """Importance of the active tokens by one layer, (active,): over its newest queries, then over its heads."""
    window = list(asked)[-importance.queries :]
    weights = [0.5 ** (behind / (importance.half_life or math.inf)) for behind in range(len(window))][::-1]
    values = torch.stack([cached[position][1] for position in active], dim=1)  # (kv_heads, active, d)
    seen_by = values.new_zeros(len(asked[window[0]]), len(active))
    for weight, position in zip(weights, window, strict=True):
        seen = [cached[other] for other in active if other <= position]
        if seen:  # else the active ones are all newer: this query has nothing to say
            seen_by[:, : len(seen)] += weight / sum(weights) * reference.attend(layer, asked[position], seen)[1]
    if importance.value_norm:
        seen_by *= values.norm(dim=-1).repeat_interleave(len(seen_by) // len(values), dim=0)
    return seen_by.amax(dim=0) if importance.heads == "max" else seen_by.mean(dim=0)


def _pooled(found, active, pooling):
    """Importance by position, each the mean over those within half a window."""
    by_token = dict(zip(active, found.tolist(), strict=True))
    if pooling == 1:
        return by_token
    near = {token: [by_token[other] for other in active if abs(other - token) <= pooling // 2] for token in active}
    return {token: sum(values) / len(values) for token, values in near.items()}


def _survivors(by_token, count, newest, prompt_length, importance, left, first_new):
    """Positions that go on: the newest, then other protected ones from new to old, then by importance.

    Those that were `left` behind in earlier steps, before `first_new`, are revived if they go on.
    """
    recent = max(importance.last, importance.queries)

    def rank(position):
        if position > newest - recent or position < min(importance.first, prompt_length):
            return 0, -position
        return 1, -by_token[position] / (importance.bonus if first_new and position in left else 1)

    chosen, revived = [], 0
    for position in sorted(by_token, key=rank):
        comes_back = position in left and position < first_new
        if len(chosen) < count and not (comes_back and importance.cap is not None and revived >= importance.cap):
            chosen.append(position)
            revived += comes_back
    return sorted(chosen)
