"""LazyLLM (Fu et al. 2024) as one plain function, `run`, which reads from top to bottom like the method.

It computes one token at a time, slowly; tests hold the rest of the library to it. The paper's terms, by section:

- **step** (3.1): a forward pass that gives one new token. The first is prefill; later ones decode the newest token.
- **stage** (3.2): a decoder layer, from 0, after which tokens are pruned, and the fraction that it keeps.
- **importance** (3.2, Eq. 1): the newest token's attention probability on a token in the stage's layer, mean over the
  query heads. (As printed, Eq. 1 can be read as a column of the attention matrix, which a causal mask makes useless.)
- **active set**: the positions that take part in a layer: all of them in the first layer, after a stage the most
  important ones, always with the newest. **Query positions** are the active ones without a KV entry, computed now.
- **Aux Cache** (3.2): the outputs of a stage's layer for the tokens pruned there.
- **revival** (3.2): a pruned token that becomes important is computed from the Aux Cache, at its own position. So each
  token is computed at most once in each layer. Table 2 counts how many of the prompt are by the end, Figure 7 when.

It runs models of the shapes of Llama, Mistral, Qwen2 and Qwen3, and gpt-oss, all without sliding windows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass
class Trace:
    """The tokens that `run` generated, and the positions it computed."""

    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # of each token, (vocabulary,)
    computed: list[list[list[int]]] = field(default_factory=list)  # query positions, by step and layer
    active: list[list[list[int]]] = field(default_factory=list)  # active positions, by step and layer


@torch.no_grad()
def run(
    model: PreTrainedModel,
    prompt: list[int],
    stages: list[tuple[int, float]],
    new_tokens: int,
    turns: Sequence[list[int]] = (),
    chunk: int | None = None,
    answer: Sequence[int] | None = None,
    every: int = 1,
) -> Trace:
    """Generate `new_tokens` tokens after `prompt`, greedily, with the prompt pruned layer by layer.

    Args:
        model: one of those named above.
        prompt: token ids.
        stages: pairs of a layer and the fraction of its tokens, above 0 and at most 1, that it keeps.
        new_tokens: how many tokens to generate.
        turns: token ids of further turns of a conversation, each answered with `new_tokens` more.
        chunk: compute at most `chunk` new tokens in a step; the first token is generated after the last chunk.
        answer: generate these tokens in place of the most likely ones.
        every: rank only in every `every`-th step of one token, counted from the last step of several (1 in the paper).
            In the others the active sets are the previous ones plus the newest token.
    """
    layers, keep_after, trace = model.model.layers, dict(stages), Trace()
    tokens: list[int] = []
    kv_cache: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in layers]  # by layer: position -> key, value
    aux_cache: dict[int, dict[int, Tensor]] = {layer: {} for layer in keep_after}  # by stage: position -> hidden state
    kept: dict[int, list[int]] = {}  # by stage: the active positions after it in the last step
    num_single = 0  # steps of one token since the last of several

    for turn in (prompt, *turns):
        tokens += turn
        goal = len(tokens) + new_tokens
        while len(tokens) < goal:
            # A step: its new tokens are those that no step has computed yet, and everything so far is active.
            computed = len(kv_cache[0])
            newest = min(len(tokens), computed + (chunk or len(tokens))) - 1
            active = list(range(newest + 1))
            embedded = model.model.embed_tokens.weight[tokens[computed : newest + 1]]
            hidden = dict(zip(active[computed:], embedded, strict=True))
            num_single = num_single + 1 if 0 < computed == newest else 0
            trace.computed.append([])
            trace.active.append([])

            for index, layer in enumerate(layers):
                queries = sorted(hidden)
                trace.computed[-1].append(queries)
                trace.active[-1].append(active)
                for position in queries:
                    query, key, value = project(model, layer, hidden[position], position)
                    kv_cache[index][position] = key, value
                    visible = [kv_cache[index][other] for other in active if other <= position]
                    attended, attention = attend(layer, query, visible)
                    middle = hidden[position] + attended
                    hidden[position] = middle + mlp(layer, middle)
                if index not in keep_after:
                    continue
                if num_single % every:
                    active = kept[index] = [*kept[index], newest]
                    continue

                # A stage. The newest token is the last of the queries, so `attention` is that of Eq. 1.
                importance = dict(zip(active, attention.mean(dim=0).tolist(), strict=True))
                importance[newest] = math.inf
                count = max(1, math.ceil(keep_after[index] * len(active) - 1e-9))
                survivors = sorted(sorted(active, key=importance.__getitem__, reverse=True)[:count])
                # Tokens that are computed here and pruned keep their output in the Aux Cache.
                for position in set(queries) - set(survivors):
                    aux_cache[index][position] = hidden.pop(position)
                # Survivors that were pruned here in an earlier step are revived.
                for position in set(survivors) & set(aux_cache[index]):
                    hidden[position] = aux_cache[index].pop(position)
                active = kept[index] = survivors

            if newest + 1 < len(tokens):
                continue  # the prompt's next chunk
            trace.logits.append(model.lm_head(model.model.norm(hidden[newest])))
            chosen = int(trace.logits[-1].argmax()) if answer is None else answer[len(trace.tokens)]
            trace.tokens.append(chosen)
            tokens.append(chosen)
    return trace


def project(model: PreTrainedModel, layer: Any, hidden: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a token's query, (heads, head_dim), key and value, (kv_heads, head_dim), from its hidden state."""
    attention = layer.self_attn
    normed = layer.input_layernorm(hidden)[None]  # quantised layers take a batch
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    query, key, value = (projection(normed).view(-1, attention.head_dim) for projection in projections)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    return rotate(model, query, position), rotate(model, key, position), value


def rotate(model: Any, vectors: Tensor, position: int) -> Tensor:
    """Apply the rotary embedding of one position to vectors, (heads, head_dim)."""
    rotary = model.model.rotary_emb
    # transformers computes the angles in float32, whatever the dtype of the model.
    angles = (position * rotary.inv_freq.float()).repeat(2)
    cosine, sine = ((wave * rotary.attention_scaling).to(vectors.dtype) for wave in (angles.cos(), angles.sin()))
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosine + torch.cat([-second, first], dim=-1) * sine


def attend(layer: Any, query: Tensor, cached: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the output, (hidden,), and probabilities, (heads, keys), of one token's attention to keys and values."""
    attention = layer.self_attn
    keys, values = (torch.stack(part, dim=1) for part in zip(*cached, strict=True))  # (kv_heads, keys, head_dim)
    keys, values = (part.repeat_interleave(len(query) // len(part), dim=0) for part in (keys, values))
    scores = torch.einsum("hd,hkd->hk", query, keys) * attention.scaling
    if getattr(attention, "sinks", None) is not None:  # a logit of attending to nothing
        scores = torch.cat([scores, attention.sinks[:, None]], dim=1)
    probabilities = scores.softmax(dim=1)[:, : len(cached)]
    mixed = torch.einsum("hk,hkd->hd", probabilities, values)
    return attention.o_proj(mixed.flatten()[None])[0], probabilities


def mlp(layer: Any, hidden: Tensor) -> Tensor:
    """Return what a layer's feed-forward part adds to a hidden state, (hidden,)."""
    output = layer.mlp(layer.post_attention_layernorm(hidden)[None, None])
    return (output[0] if isinstance(output, tuple) else output).flatten()  # a mixture of experts gives scores, too
