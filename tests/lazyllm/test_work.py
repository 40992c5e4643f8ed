"""No work that is not needed: rows, copies, and questions to the device."""

from __future__ import annotations

import families
import pytest
import torch
from watch import Watch

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])


def prefill(model, ids):
    with torch.no_grad():
        return model(ids, attention_mask=torch.ones_like(ids), logits_to_keep=1)


def step(model, cache, total):
    """One decoding step."""
    with torch.no_grad():
        model(torch.tensor([[5]]), attention_mask=torch.ones(1, total, dtype=torch.int64), past_key_values=cache)


def test_hooks_on_the_last_layer_run_once_a_step(model, ids):
    calls = []
    hooks = [
        model.model.layers[-1].register_forward_pre_hook(lambda module, args: calls.append("before")),
        model.model.layers[-1].register_forward_hook(lambda module, args, output: calls.append("after")),
    ]
    with lazyllm.enable(model, STAGES):
        families.generate(model, ids, 3)
    for hook in hooks:
        hook.remove()
    assert calls == ["before", "after"] * 3


@pytest.mark.parametrize(
    ("schedule", "selection"),
    [
        (lazyllm.PruningSchedule(), lazyllm.Importance()),
        (lazyllm.PruningSchedule([(1, 0.6)]), lazyllm.StaticSelection()),
    ],
    ids=["whole", "static"],
)
def test_a_decoding_step_that_revives_nothing_copies_no_keys_or_values(schedule, selection):
    model, ids = families.build("llama", max_position_embeddings=8192), families.prompt(4000)
    with lazyllm.enable(model, schedule, selection=selection):
        cache = prefill(model, ids).past_key_values
        with Watch() as watch:
            step(model, cache, 4001)
    config = model.config
    keys_of_a_layer = 4000 * config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    assert 0 < watch.largest_made < 0.3 * keys_of_a_layer


def synchronisations(run):
    with Watch() as watch:
        run()
    return watch.synchronisations


def test_prefilling_asks_the_device_nothing_of_its_own(model, ids):
    unmodified = synchronisations(lambda: prefill(model, ids))
    with lazyllm.enable(model, STAGES):
        assert synchronisations(lambda: prefill(model, ids)) <= unmodified


@pytest.mark.parametrize(
    ("schedule", "selection", "questions"),
    [
        (lazyllm.PruningSchedule(), lazyllm.Importance(), 0),
        (STAGES, lazyllm.Importance(), 2),  # how many tokens are revived at each stage
        (STAGES, lazyllm.Importance(bonus=3), 2),
        (STAGES, lazyllm.Importance(cap=2), 4),  # and how many of the computed ones take their places
        (STAGES, lazyllm.Importance(cap=0), 2),
        (lazyllm.PruningSchedule([(1, 0.6)]), lazyllm.StaticSelection(), 0),
    ],
    ids=["whole", "dynamic", "bonus", "cap", "no revival", "static"],
)
def test_a_decoding_step_asks_the_device_once_a_stage_at_most(model, ids, schedule, selection, questions):
    unmodified = prefill(model, ids).past_key_values
    step(model, unmodified, 41)
    expected = synchronisations(lambda: step(model, unmodified, 42))
    with lazyllm.enable(model, schedule, selection=selection):
        cache = prefill(model, ids).past_key_values
        step(model, cache, 41)  # asks about the prompt's mask, once
        assert synchronisations(lambda: step(model, cache, 42)) <= expected + questions


def test_pruned_tokens_take_no_memory_where_they_are_not_computed():
    model, ids = families.build("llama", dtype=torch.float64), families.prompt(400)
    with lazyllm.enable(model, STAGES) as lazy:
        families.generate(model, ids, 3)
    stats = lazy.stats
    a_token = 2 * 2 * 12 * 8  # key and value of two heads of 12 in float64
    held = stats.kv_bytes / a_token
    for step in range(3):
        computed = stats.rows[: step + 1].sum(0)
        assert (held[step] >= computed).all()
        assert (held[step] <= computed + 128 + 512 * (step > 0)).all()  # with room for tokens to come
    assert held[0, -1] < 0.7 * held[0, 0]
    assert (stats.aux_bytes / (48 * 8)).tolist() == [528, 528, 528]
    with lazyllm.enable(model, "0:1.0") as lazy:
        families.generate(model, ids, 1)
    assert lazy.stats.aux_bytes.tolist() == [0]
