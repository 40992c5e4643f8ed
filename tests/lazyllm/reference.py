"""LazyLLM written a second time, slowly, for Llama-shaped models: one token, one head at a time, no cache tricks.

Follows the definition step by step: rows are computed from their stored hidden state at their original
positions, attend to the active members at or before them, and a stage passes on the most important members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel


@dataclass
class Trace:
    tokens: list[int] = field(default_factory=list)
    rows: list[list[list[int]]] = field(default_factory=list)
    active: list[list[list[int]]] = field(default_factory=list)


def run(
    model: PreTrainedModel,
    prompt: list[int],
    stages: list[tuple[int, float]],
    new_tokens: int,
    turns: Sequence[list[int]] = (),
    chunk: int | None = None,
) -> Trace:
    """Greedy LazyLLM on a Llama, Mistral, Qwen2 or Qwen3 model, or gpt-oss without windows.

    Each of `turns` follows on the answer before it, and is answered with `new_tokens` more. What is new of a turn comes
    in passes of `chunk` tokens at most.
    """
    state = _State(model, dict(stages))
    with torch.no_grad():
        new: list[int] = []
        for given in (prompt, *turns):
            new = new + given
            size = chunk or len(new)
            for start in range(0, len(new), size):
                answer = int(state.step(new[start : start + size]).argmax())
            for _ in range(new_tokens - 1):
                state.trace.tokens.append(answer)
                answer = int(state.step([answer]).argmax())
            state.trace.tokens.append(answer)
            new = [answer]
    return state.trace


def forced(model: PreTrainedModel, prompt: list[int], stages: list[tuple[int, float]], answer: list[int]) -> list:
    """Logits, (vocabulary,), that LazyLLM has for each token of an answer which is given, not chosen."""
    state = _State(model, dict(stages))
    with torch.no_grad():
        return [state.step(new) for new in (prompt, *([token] for token in answer[:-1]))]


class _State:
    """Everything that is known of the tokens so far."""

    def __init__(self, model: PreTrainedModel, keep_after: dict[int, float]) -> None:
        self.model = model
        self.keep_after = keep_after
        self.trace = Trace()
        self.count = 0
        # By position: the input of the first layer that it has no key and value in.
        self.hidden: dict[int, torch.Tensor] = {}
        self.cached: list[dict[int, tuple[torch.Tensor, torch.Tensor]]] = [{} for _ in model.model.layers]

    def step(self, new: list[int]) -> torch.Tensor:
        """One forward pass over new tokens; the logits of what follows, (vocabulary,)."""
        model, hidden, cached = self.model, self.hidden, self.cached
        for token in new:
            hidden[self.count] = model.model.embed_tokens.weight[token]
            self.count += 1
        newest = self.count - 1
        active = list(range(self.count))
        step_rows, step_active = [], []
        for index, layer in enumerate(model.model.layers):
            rows = [position for position in active if position not in cached[index]]
            step_rows.append(rows)
            step_active.append(active)
            queries = {}
            for position in rows:
                query, key, value = _project(model, layer, hidden[position], position)
                queries[position] = query
                cached[index][position] = (key, value)
            importance = {}
            for position in rows:
                seen = [other for other in active if other <= position]
                attended, probabilities = _attend(layer, queries[position], [cached[index][j] for j in seen])
                if position == newest:
                    importance = dict(zip(seen, probabilities, strict=True))
                middle = hidden[position] + layer.self_attn.o_proj(attended[None])[0]
                hidden[position] = middle + _mlp(layer, middle)
            if index in self.keep_after:
                count = max(1, math.ceil(self.keep_after[index] * len(active) - 1e-9))
                ranked = sorted(active, key=lambda j: (j != newest, -importance[j]))
                active = sorted(ranked[:count])
        self.trace.rows.append(step_rows)
        self.trace.active.append(step_active)
        return model.lm_head(model.model.norm(hidden[newest]))


def _project(model, layer, hidden, position):  # -> query (heads, d), key (kv_heads, d), value (kv_heads, d)
    attention = layer.self_attn
    normed = layer.input_layernorm(hidden)[None]  # quantised layers take rows
    query = attention.q_proj(normed).view(-1, attention.head_dim)
    key = attention.k_proj(normed).view(-1, attention.head_dim)
    value = attention.v_proj(normed).view(-1, attention.head_dim)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    frequencies = model.model.rotary_emb.inv_freq.to(hidden.dtype)
    return _rotate(query, position, frequencies), _rotate(key, position, frequencies), value


def _mlp(layer, hidden):
    output = layer.mlp(layer.post_attention_layernorm(hidden)[None, None])
    # Mixtures of experts give the router's scores, too.
    return (output[0] if isinstance(output, tuple) else output).flatten()


def _rotate(vectors, position, frequencies):
    half = vectors.shape[-1] // 2
    # transformers computes the rotary angles in float32, whatever the dtype of the model.
    angles = (position * frequencies.float()).to(torch.float32)
    cosine, sine = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    first, second = vectors[:, :half], vectors[:, half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def _attend(layer, query, pairs):  # -> output (heads * d,), mean probability over heads for each pair
    heads, groups = query.shape[0], query.shape[0] // pairs[0][0].shape[0]
    outputs, means = [], [0.0] * len(pairs)
    for head in range(heads):
        scores = [float(query[head] @ key[head // groups]) * layer.self_attn.scaling for key, _ in pairs]
        largest = max(scores)
        weights = [math.exp(score - largest) for score in scores]
        total = sum(weights)
        if getattr(layer.self_attn, "sinks", None) is not None:
            total += math.exp(float(layer.self_attn.sinks[head]) - largest)
        mixed = torch.zeros_like(query[head])
        for j, (_, value) in enumerate(pairs):
            mixed = mixed + weights[j] / total * value[head // groups]
            means[j] += weights[j] / total / heads
        outputs.append(mixed)
    return torch.cat(outputs), means
