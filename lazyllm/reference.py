"""LazyLLM (Fu et al. 2024) as one plain function: `run`, which reads from top to bottom like the method.

It computes one token at a time, and is slow. The rest of this library computes the same numbers fast, for many models
and ways to generate; the tests hold it to this file. The paper's terms, by section:

- **step** (3.1): one forward pass that gives one new token. The first, *prefilling*, computes the prompt; those after
  it, *decoding*, compute the **newest token**, from whose output the next is predicted, and whatever is revived.
- **stage** (3.2, progressive token pruning): a decoder layer, counted from 0, behind which tokens are pruned, and the
  fraction of them that it keeps. The paper gives k as a percentile of the layer's tokens.
- **importance** (3.2, Eq. 1): the attention probability of the newest token on a token in the stage's layer, mean over
  the query heads. (As printed, Eq. 1 can be read as a column of the attention matrix, which is useless under a causal
  mask: it is the newest token's row.)
- **active set**: the positions that take part in a layer in this step: in the first layer all, behind a stage the most
  important of those before it, and always the newest. **Rows** are those that the layer has no key and value of yet.
- **Aux Cache** (3.2): the outputs of a stage's layer for the tokens that were pruned there: all a token needs to go on.
- **revival** (3.2): in a later step a token that was left behind may be important enough to go on. It is then computed
  from the Aux Cache, at its own position, so each token is computed at most once in each layer. How many are computed
  by the end is Table 2's "% of prompt token computed", and step by step Figure 7 (5.5).

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
    """What `run` did."""

    tokens: list[int] = field(default_factory=list)  # those generated
    logits: list[Tensor] = field(default_factory=list)  # what each of them was chosen from, (vocabulary,)
    rows: list[list[list[int]]] = field(default_factory=list)  # positions computed, by step and layer
    active: list[list[list[int]]] = field(default_factory=list)  # positions that took part, by step and layer


@torch.no_grad()
def run(
    model: PreTrainedModel,
    prompt: list[int],
    stages: list[tuple[int, float]],
    new_tokens: int,
    turns: Sequence[list[int]] = (),
    chunk: int | None = None,
    answer: Sequence[int] | None = None,
) -> Trace:
    """Generate `new_tokens` tokens after `prompt`, greedily, with the prompt pruned layer by layer.

    Args:
        model: one of those named above.
        prompt: token ids.
        stages: pairs of a layer and the fraction, above 0 and at most 1, of the layer's tokens that go on behind it.
        new_tokens: how many tokens to generate.
        turns: token ids of further turns of a conversation, each answered with `new_tokens` more.
        chunk: compute at most so many new tokens in a step; the first token is generated after the last chunk.
        answer: go on with these tokens in place of the most likely ones.
    """
    layers, keep_after, trace = model.model.layers, dict(stages), Trace()
    tokens: list[int] = []
    kv_cache: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in layers]  # by layer: position -> key, value
    aux_cache: dict[int, dict[int, Tensor]] = {layer: {} for layer in keep_after}  # by stage: position -> hidden state

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
            trace.rows.append([])
            trace.active.append([])

            for index, layer in enumerate(layers):
                rows = sorted(hidden)
                trace.rows[-1].append(rows)
                trace.active[-1].append(active)
                for position in rows:
                    query, key, value = project(model, layer, hidden[position], position)
                    kv_cache[index][position] = key, value
                    seen = [other for other in active if other <= position]
                    attended, attention = attend(layer, query, [kv_cache[index][other] for other in seen])
                    middle = hidden[position] + attended
                    hidden[position] = middle + mlp(layer, middle)
                if index not in keep_after:
                    continue

                # A stage. The newest token is the last of the rows, so `attention` is its row: Eq. 1.
                importance = dict(zip(active, attention.mean(dim=0).tolist(), strict=True))
                importance[newest] = math.inf
                count = max(1, math.ceil(keep_after[index] * len(active) - 1e-9))
                survivors = sorted(sorted(active, key=importance.__getitem__, reverse=True)[:count])
                # What is computed here and left behind keeps its output in the Aux Cache.
                for position in set(rows) - set(survivors):
                    aux_cache[index][position] = hidden.pop(position)
                # What was left behind here in an earlier step, and goes on now, is revived.
                for position in set(survivors) & set(aux_cache[index]):
                    hidden[position] = aux_cache[index].pop(position)
                active = survivors

            if newest + 1 < len(tokens):
                continue  # the prompt's next chunk
            trace.logits.append(model.lm_head(model.model.norm(hidden[newest])))
            chosen = int(trace.logits[-1].argmax()) if answer is None else answer[len(trace.tokens)]
            trace.tokens.append(chosen)
            tokens.append(chosen)
    return trace


def project(model: PreTrainedModel, layer: Any, hidden: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """A token's query, (heads, head_dim), its key and its value, (kv_heads, head_dim), from its hidden state."""
    attention = layer.self_attn
    normed = layer.input_layernorm(hidden)[None]  # quantised layers take rows
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    query, key, value = (projection(normed).view(-1, attention.head_dim) for projection in projections)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    return rotate(model, query, position), rotate(model, key, position), value


def rotate(model: Any, vectors: Tensor, position: int) -> Tensor:
    """Rotary embedding of one position for vectors (heads, head_dim)."""
    rotary = model.model.rotary_emb
    # transformers computes the angles in float32, whatever the dtype of the model.
    angles = (position * rotary.inv_freq.float()).repeat(2)
    cosine, sine = ((wave * rotary.attention_scaling).to(vectors.dtype) for wave in (angles.cos(), angles.sin()))
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosine + torch.cat([-second, first], dim=-1) * sine


def attend(layer: Any, query: Tensor, cached: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One token's attention to the listed keys and values: its output, (hidden,), and (heads, keys), probabilities."""
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
    """What a layer's feed-forward part adds to a hidden state, (hidden,)."""
    output = layer.mlp(layer.post_attention_layernorm(hidden)[None, None])
    return (output[0] if isinstance(output, tuple) else output).flatten()  # a mixture of experts gives scores, too
