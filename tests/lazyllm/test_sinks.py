"""Attention sinks: each head has a logit of attending to no token, in attention and in what ranks by it."""

from __future__ import annotations

from dataclasses import dataclass

import families
import naive_importance as naive
import pytest
import torch
from refusals import refuse
from test_importance import check_by_naive
from watch import Watch

import lazyllm
from lazyllm import reference

STAGES = [(1, 0.6), (3, 0.4)]


def build(dtype=torch.float64, full=5, sink=1.0, **changes):
    """A model with sinks, by default with full attention in all layers, in which a sink takes much of the attention."""
    kinds = ["sliding_attention"] * (5 - full) + ["full_attention"] * full
    model = families.build("gpt_oss", dtype=dtype, layer_types=kinds, **changes)
    for layer in model.model.layers:
        layer.self_attn.sinks.data.copy_(torch.tensor([1.5, -1.0, 0.5, 3.0]) * sink)
    return model


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def ids():
    return families.prompt(24, seed=6)


@pytest.mark.parametrize("parts", [*naive.ALONE.values(), naive.ALL], ids=str)
def test_what_goes_on_is_what_the_formula_says(model, ids, parts):
    check_by_naive(model, STAGES, ids, 5, parts)


def test_static_pruning_and_eq1_agree_with_plain_loops(model, ids):
    with lazyllm.enable(model, lazyllm.PruningSchedule(STAGES), record_positions=True) as lazy:
        output = families.generate(model, ids, 6)
    expected = reference.run(model, ids[0].tolist(), STAGES, 6)
    assert output.sequences[0, 24:].tolist() == expected.tokens
    assert [[layer.tolist() for layer in step] for step in lazy.stats.positions] == expected.active
    # By the unmodified model's own attention, which eager mode shows: of layers 0 and 1 alike.
    attentions = model(ids, output_attentions=True).attentions
    importance = torch.stack([layer[0, :, -1].mean(dim=0) for layer in attentions[:2]]).mean(dim=0)
    importance[-1] = 2
    with lazyllm.enable(model, "1:0.5", selection=lazyllm.StaticSelection(), record_positions=True) as lazy:
        families.generate(model, ids, 2)
    assert lazy.stats.positions[0][2].tolist() == sorted(importance.topk(12).indices.tolist())


def test_importance_is_the_unmodified_models_attention_and_less_than_one(model, ids):
    attentions = model(ids, output_attentions=True).attentions
    with lazyllm.enable(model, "", record_importance=True) as lazy:
        families.generate(model, ids, 1)
    for found, attention in zip(lazy.stats.importance, attentions, strict=True):
        torch.testing.assert_close(found, attention[0, :, -1].mean(dim=0), rtol=1e-9, atol=0)
        assert found.sum() < 0.99


@dataclass
class Own(lazyllm.Selection):
    """Eq. 1, written outside of the package."""

    def observe(self, layer, query, key, scaling, softcap):
        newest = query[:, :, -1:]
        attention = lazyllm.attention_on(key, newest, self.present(layer), scaling, softcap, self.sinks)
        self.importance = self.by_position(layer, attention.mean(dim=(1, 2, 3))[0])


@dataclass
class Unaware(lazyllm.Selection):
    """One that knows nothing of sinks."""

    def observe(self, layer, query, key, scaling, softcap):
        found = lazyllm.newest_row(query, key, self.present(layer), scaling, softcap)
        self.importance = self.by_position(layer, found)


def test_a_ranking_of_ones_own_is_given_the_sinks(model, ids):
    found = {}
    for ranking in (lazyllm.Importance(), Own(), Unaware()):
        with lazyllm.enable(model, lazyllm.PruningSchedule(STAGES), selection=ranking, record_positions=True) as lazy:
            families.generate(model, ids, 6)
        found[type(ranking)] = [[layer.tolist() for layer in step] for step in lazy.stats.positions]
    assert found[Own] == found[lazyllm.Importance] != found[Unaware]


def test_a_model_without_sinks_has_none():
    @dataclass
    class Asks(Own):
        def observe(self, *args):
            assert self.sinks is None
            super().observe(*args)

    model = families.build("llama")
    with lazyllm.enable(model, "1:0.5", selection=Asks()):
        families.generate(model, families.prompt(12), 2)


@pytest.mark.parametrize("sink", [-50.0, 50.0])
def test_extreme_sinks_are_exact(ids, sink):
    model = build(torch.float32, sink=sink)
    before = families.generate(model, ids, 4)
    with lazyllm.enable(model, "") as lazy:
        after = families.generate(model, ids, 4)
    assert torch.equal(before.sequences, after.sequences)
    for one, other in zip(before.logits, after.logits, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-5)
    assert lazy.stats.rows.tolist() == [[24] * 5] + [[1] * 5] * 3


def test_in_bfloat16_it_is_no_further_off_than_the_unmodified_model(ids):
    exact, model = build(torch.float32), build(torch.bfloat16)
    model.load_state_dict(exact.state_dict())
    exact.load_state_dict(model.state_dict())  # rounded alike
    ids = families.prompt(60)
    expected = exact(ids).logits[0, -1]
    before = model(ids).logits[0, -1].float()
    with lazyllm.enable(model, ""):
        after = model(ids, logits_to_keep=1).logits[0, -1].float()
    assert (after - expected).norm() < 1.5 * (before - expected).norm()


def test_a_long_prompts_attention_matrix_is_never_made_at_once():
    model, ids = build(torch.float32, full=3, max_position_embeddings=8192), families.prompt(3000)
    with lazyllm.enable(model, "2:0.5"), Watch() as watch:
        families.generate(model, ids, 1)
    assert watch.largest < 1 << 25 < 4 * 3000**2


def test_sinks_that_are_not_the_modules_are_refused(model, ids):
    attention = model.model.layers[2].self_attn
    own, attention.sinks = attention.sinks, torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))
    try:
        with lazyllm.enable(model, "1:0.5"):
            refuse("one logit a query head", lambda: families.generate(model, ids, 1))
    finally:
        attention.sinks = own
