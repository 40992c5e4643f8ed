"""`lazyllm.Importance` written a second time, densely and slowly, for Llama-shaped models.

The engine is the definition's, as in `reference`: rows are computed from their stored hidden state and attend to the
active members at or before them. The ranking is the one formula, head by head, query by query, token by token.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence

import torch
from transformers import PreTrainedModel

import lazyllm
from lazyllm import reference

# Each part of `lazyllm.Importance` by itself, and all of them.
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


def run(
    model: PreTrainedModel,
    prompt: list[int],
    stages: list[tuple[int, float]],
    importance: lazyllm.Importance,
    new_tokens: int,
    turns: Sequence[list[int]] = (),
) -> reference.Trace:
    """Greedy generation with the parts of `importance` on a model that `reference.run` takes.

    Each of `turns` follows on the answer before it, and is answered with `new_tokens` more.
    """
    stages = [(layer, keep) for layer, keep in stages if keep < 1]  # one that keeps everything is none
    keep_after = dict(stages)
    layers, heads = model.model.layers, model.config.num_attention_heads
    tokens, trace = list(prompt), reference.Trace()
    hidden: dict[int, torch.Tensor] = {}  # position -> input of the first layer it has no key and value in
    cached: list[dict[int, tuple[torch.Tensor, torch.Tensor]]] = [{} for _ in layers]
    asked: list[dict[int, torch.Tensor]] = [{} for _ in layers]  # a layer's queries, by position, oldest first
    with torch.no_grad():
        for step in range(new_tokens * (1 + len(turns))):
            if step and step % new_tokens == 0:
                tokens += turns[step // new_tokens - 1]
            first_new, newest = len(cached[0]), len(tokens) - 1
            for position in range(len(tokens)):
                if position not in cached[0]:
                    hidden[position] = model.model.embed_tokens.weight[tokens[position]]
            active = list(range(len(tokens)))
            step_rows, step_active = [], []
            for index, layer in enumerate(layers):
                rows = [position for position in active if position not in cached[index]]
                step_rows.append(rows)
                step_active.append(active)
                queries = {}
                for position in rows:
                    query, key, value = reference.project(model, layer, hidden[position], position)
                    queries[position] = query
                    cached[index][position] = (_per_head(key, heads), _per_head(value, heads))
                # What is revived later asked when it was new: only the new tokens' queries join.
                asked[index].update({position: query for position, query in queries.items() if position >= first_new})
                for position in rows:
                    seen = [other for other in active if other <= position]
                    weights = _probabilities(layer, queries[position], [cached[index][j][0] for j in seen])
                    values = torch.stack([cached[index][j][1] for j in seen], dim=1)
                    attended = (weights[:, :, None] * values).sum(dim=1).flatten()
                    middle = hidden[position] + layer.self_attn.o_proj(attended)
                    hidden[position] = middle + reference.mlp(layer, middle)
                if index in keep_after:
                    before = max((stage for stage, _ in stages if stage < index), default=-1)
                    span = range(max(before + 1, index - importance.layers + 1), index + 1)
                    found = {
                        other: _seen_by(layers[other], asked[other], cached[other], active, importance.queries)
                        for other in span
                    }
                    by_token = weigh(
                        lambda layer, head, query, token, found=found: found[layer].get((head, query, token), 0.0),
                        {layer: list(asked[layer])[-importance.queries :] for layer in span},
                        heads,
                        active,
                        importance,
                        lambda layer, head, token: float(torch.linalg.vector_norm(cached[layer][token][1][head])),
                    )
                    left = {position for position in active if position not in cached[index + 1]}
                    active = survivors(by_token, keep_after[index], newest, len(prompt), importance, left, first_new)
            trace.rows.append(step_rows)
            trace.active.append(step_active)
            logits = model.lm_head(model.model.norm(hidden[newest]))
            tokens.append(int(logits.argmax()))
            trace.tokens.append(tokens[-1])
    return trace


def weigh(
    attention: Callable[[int, int, int, int], float],
    queries: dict[int, list[int]],
    heads: int,
    active: list[int],
    importance: lazyllm.Importance,
    norm: Callable[[int, int, int], float],
) -> dict[int, float]:
    """The formula: importance by position.

    `attention` is the probability by layer, head, query's position and token's position; `norm` the length of a value
    by layer, head and token's position; `queries` are positions by each layer that has a say.
    """
    reduce = max if importance.heads == "max" else lambda values: sum(values) / len(values)
    largest = {}
    for token in active:
        by_layer = []
        for layer, window in queries.items():
            by_head = []
            for head in range(heads):
                weights = [0.5 ** (behind / (importance.half_life or math.inf)) for behind in range(len(window))][::-1]
                seen = [attention(layer, head, query, token) for query in window]
                mean = sum(map(operator.mul, seen, weights)) / sum(weights)
                by_head.append(mean * (norm(layer, head, token) if importance.value_norm else 1))
            by_layer.append(reduce(by_head))
        largest[token] = max(by_layer)
    if importance.pooling == 1:
        return largest
    pooled = {}
    for token in active:
        near = [largest[other] for other in active if abs(other - token) <= importance.pooling // 2]
        pooled[token] = sum(near) / len(near)
    return pooled


def survivors(
    by_token: dict[int, float],
    keep: float,
    newest: int,
    prompt_length: int,
    importance: lazyllm.Importance,
    uncomputed: Collection[int] = (),
    first_new: int = 0,
) -> list[int]:
    """Positions that go on: the newest, then other protected ones from new to old, then by importance.

    `uncomputed` have no key and value in the next layer; those before `first_new` are revived if they go on.
    """
    count = max(1, math.ceil(keep * len(by_token) - 1e-9))
    recent = max(importance.last, importance.queries)

    def rank(position):
        protected = position > newest - recent or position < min(importance.first, prompt_length)
        if protected:
            return 0, -position
        return 1, -by_token[position] / (importance.bonus if first_new and position in uncomputed else 1)

    chosen, revived = [], 0
    for position in sorted(by_token, key=rank):
        comes_back = position in uncomputed and position < first_new
        if len(chosen) < count and not (comes_back and importance.cap is not None and revived >= importance.cap):
            chosen.append(position)
            revived += comes_back
    return sorted(chosen)


def _per_head(states, heads):  # (kv_heads, d) -> (heads, d)
    return torch.stack([states[head * states.shape[0] // heads] for head in range(heads)])


def _probabilities(layer, query, keys):  # query (heads, d), a list of keys (heads, d) -> (heads, keys)
    scores = (query[:, None] * torch.stack(keys, dim=1)).sum(dim=-1) * layer.self_attn.scaling
    largest = scores.max(dim=1).values
    weights = (scores - largest[:, None]).exp()
    total = weights.sum(dim=1)
    if getattr(layer.self_attn, "sinks", None) is not None:
        total = total + (layer.self_attn.sinks - largest).exp()
    return weights / total[:, None]


def _seen_by(layer, asked, cached, active, count):  # -> {(head, query, token): probability}
    found = {}
    for position in list(asked)[-count:]:
        seen = [other for other in active if other <= position]
        if not seen:  # the active ones are all newer: this query has nothing to say
            continue
        weights = _probabilities(layer, asked[position], [cached[j][0] for j in seen]).tolist()
        for head, by_token in enumerate(weights):
            found.update({(head, position, token): weight for token, weight in zip(seen, by_token, strict=True)})
    return found
