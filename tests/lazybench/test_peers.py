"""GemFilter and FastKV against the eager model's own attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import answer, build, pooled
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from lazybench.methods.fastkv import FastKV
from lazybench.methods.gemfilter import GemFilter

LAYER = 1


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(2, 40), keep=st.sampled_from([0.1, 0.5, 0.9]))
def test_gemfilter_keeps_the_highest_pooled_raw_scores(seed, length, keep):
    method = GemFilter("gemfilter", layer=LAYER, keep=keep)
    output, (given_ids,), ids = answer(method, seed, length)
    model = build(seed, "eager")
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states[LAYER]
        layer = model.model.layers[LAYER]
        normed = layer.input_layernorm(hidden)
        shape = (1, length, -1, 8)
        query = layer.self_attn.q_proj(normed).view(shape).transpose(1, 2)
        key = layer.self_attn.k_proj(normed).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *model.model.rotary_emb(hidden, torch.arange(length)[None]))
        raw = sum(key[0, head // 2] @ query[0, head, -1] for head in range(4))
    count = max(1, -int(-keep * length // 1))
    kept = pooled(raw, 5).argsort(descending=True)[:count].sort().values
    assert torch.equal(given_ids, ids[:, kept])
    assert output.prompt_computed == pytest.approx(2 / 4 + count / length)  # both passes


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(2, 40), keep=st.sampled_from([0.1, 0.5, 0.9]))
def test_fastkv_keeps_the_window_and_what_it_attends_to(seed, length, keep):
    method = FastKV("fastkv", layer=LAYER, keep=keep, window=4, pooling=3)
    output, (given_ids,), ids = answer(method, seed, length)
    assert torch.equal(given_ids, ids)
    with torch.no_grad():
        attention = build(seed, "eager")(ids, output_attentions=True).attentions[LAYER][0]
    window, count = min(4, length - 1), max(1, -int(-keep * length // 1))
    seen = attention[:, -window:, : length - window].sum(1)
    importance = sum(pooled(head, 3) for head in seen)
    recent = list(range(length - window, length))[-count:]
    kept = sorted(importance.argsort(descending=True)[: count - len(recent)].tolist()) + recent
    for step, positions in enumerate(output.stats.positions):
        generated = list(range(length, length + step))
        assert [layer.tolist() for layer in positions[LAYER + 1 :]] == [kept + generated] * 2
