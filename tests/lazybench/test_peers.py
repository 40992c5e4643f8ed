"""The small methods against naive computations, most of them on the eager model's own attention."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import answer, build, pooled, prompt_of
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from lazybench.methods.fastkv import FastKV
from lazybench.methods.gemfilter import GemFilter
from lazybench.methods.random_drop import RandomDrop

LAYER = 1
SPECIAL = [0, 1, 2]


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
def test_fastkv_keeps_the_window_and_the_tokens_it_attends_to(seed, length, keep):
    method = FastKV("fastkv", layer=LAYER, keep=keep, window=4, pooling=3)
    output, (given_ids,), ids = answer(method, seed, length)
    assert torch.equal(given_ids, ids)
    with torch.no_grad():
        attention = build(seed, "eager")(ids, output_attentions=True).attentions[LAYER][0]
    window, count = min(4, length - 1), max(1, -int(-keep * length // 1))
    by_head = attention[:, -window:, : length - window].sum(1)
    importance = sum(pooled(head, 3) for head in by_head)
    recent = list(range(length - window, length))[-count:]
    kept = sorted(importance.argsort(descending=True)[: count - len(recent)].tolist()) + recent
    for step, positions in enumerate(output.stats.positions):
        generated = list(range(length, length + step))
        assert [layer.tolist() for layer in positions[LAYER + 1 :]] == [kept + generated] * 2


def drop(ids: list[int], keep: float, seed: int = 0, record_id: str = "a") -> tuple[list[int], float]:
    """The ids that the model is given, and `prompt_computed`."""
    given: list[torch.Tensor] = []
    prompt = prompt_of(torch.tensor([ids]), SimpleNamespace(all_special_ids=SPECIAL), record_id)
    method = RandomDrop("random_drop", keep=keep)
    (output,) = method.generate([prompt], lambda prompts: given.extend(prompts) or [[7]], [seed])
    assert output.tokens == [7]
    assert given[0].dtype == torch.int64
    return given[0][0].tolist(), output.prompt_computed


ids_lists = st.lists(st.integers(0, 9), min_size=1, max_size=80)
keeps = st.floats(0.001, 1)


@given(ids_lists, keeps, st.integers(0, 4))
def test_count_order_and_protected_tokens(ids, keep, seed):
    kept, computed = drop(ids, keep, seed)
    protected = sum(token in SPECIAL for token in ids[:-1]) + 1
    assert len(kept) == max(protected, math.ceil(keep * len(ids) - 1e-9))
    assert computed == len(kept) / len(ids)
    assert kept[-1] == ids[-1]
    assert [token for token in kept[:-1] if token in SPECIAL] == [token for token in ids[:-1] if token in SPECIAL]
    rest = iter(ids)
    assert all(token in rest for token in kept)  # a subsequence


def test_other_seeds_and_records_draw_otherwise():
    ids = list(range(3, 203))
    draws = [drop(ids, 0.5, seed, record)[0] for seed in range(5) for record in ("a", "b")]
    assert len({tuple(draw) for draw in draws}) == 10


def test_draws_stay_the_same_everywhere():
    assert drop(list(range(3, 23)), 0.3) == ([8, 9, 12, 18, 20, 22], 0.3)  # as first drawn, with Python 3.11
