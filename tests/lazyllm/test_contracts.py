"""A ranking of the user's own is held to its contract, in one line that names it; LazyLLM's own are trusted."""

from dataclasses import dataclass, field

import families
import pytest
import torch
from checks import STAGES, assert_refused, generate_recorded

import lazyllm


class Own(lazyllm.AttentionRanking):
    """LazyLLM's choice, changed by `spoil` in decoding."""

    def spoil(self, survivors):
        return survivors

    def survivors(self, layer, count):
        chosen = super().survivors(layer, count)
        return chosen if self.sequence.is_prefill else self.spoil(chosen)


def swapped(survivors):
    return torch.cat([survivors[1:2], survivors[:1], survivors[2:]])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda survivors: survivors[:-1],
        lambda survivors: survivors[:0],
        swapped,
        lambda survivors: torch.cat([survivors[:1], survivors[:1], survivors[1:]]),
        lambda survivors: torch.cat([survivors.new_tensor([-1]), survivors]),
        lambda survivors: survivors.tolist(),
        lambda survivors: survivors > 3,
        lambda survivors: survivors[None],
    ],
    ids=["not the newest", "none", "unsorted", "twice", "negative", "list", "bool", "2-D"],
)
def test_survivors_that_break_the_contract_are_refused(model, ids, spoil):
    ranking = type("Own", (Own,), {"spoil": lambda self, survivors: spoil(survivors)})()
    assert_refused("Own.survivors after layer 1", lambda: generate_recorded(model, STAGES, ids, 4, ranking=ranking))


def test_survivors_must_be_active(model, ids):
    class Deep(Own):
        def survivors(self, layer, count):  # all positions, though the first stage pruned some
            return super().survivors(layer, count) if layer == 1 else torch.arange(self.sequence.num_tokens)

    assert_refused("Deep.survivors after layer 3", lambda: generate_recorded(model, STAGES, ids, 2, ranking=Deep()))


@pytest.mark.parametrize("base", [Own, lazyllm.StaticRanking])
@pytest.mark.parametrize(
    "spoil",
    [lambda actual: torch.rand(77), lambda actual: actual / 0 * 0],
    ids=["long", "NaN"],
)
def test_importance_is_one_number_a_position(model, ids, base, spoil):
    class Spoilt(base):
        def observe(self, attention):
            self.importance = spoil(self.by_position(attention.layer, attention.probabilities().mean(dim=(1, 2, 3))[0]))

    assert_refused("Spoilt.*self.importance", lambda: generate_recorded(model, "1:0.6", ids, 2, ranking=Spoilt()))


def test_a_ranking_may_reuse_its_tensor_and_is_checked_unless_it_says_so(model, ids):
    class Reusing(Own):
        def survivors(self, layer, count):
            chosen = super().survivors(layer, count)
            self.buffer = torch.cat([chosen, torch.full((64,), -1)]) if layer == 1 else self.buffer
            self.buffer[: len(chosen)] = chosen
            return self.buffer[: len(chosen)]

    class Trusted(Own, checked=False):
        def survivors(self, layer, count):
            return swapped(super().survivors(layer, count))

    expected = generate_recorded(model, STAGES, ids, 8)[0].sequences
    for ranking in (Own(), Reusing()):
        assert torch.equal(generate_recorded(model, STAGES, ids, 8, ranking=ranking)[0].sequences, expected)
    generate_recorded(model, STAGES, ids, 2, ranking=Trusted())
    assert not any(ranking.checked for ranking in (lazyllm.AttentionRanking, lazyllm.StaticRanking, Trusted))
    assert type("Heir", (Trusted,), {}).checked


@pytest.mark.parametrize("wrong", [Own, {"queries": 8}], ids=str)
def test_what_is_no_ranking_is_refused(model, wrong):
    assert_refused("ranking must be an instance", lambda: lazyllm.enable(model, STAGES, ranking=wrong))


def test_static_pruning_takes_one_stage(model):
    refused = "StaticRanking prunes at one stage"
    assert_refused(refused, lambda: lazyllm.enable(model, STAGES, ranking=lazyllm.StaticRanking()))


def test_a_generation_works_on_a_copy_of_the_ranking(model, ids):
    copies = []

    @dataclass
    class Recording(lazyllm.AttentionRanking):
        layers_observed: list = field(default_factory=list)

        def observe(self, attention):
            self.layers_observed.append(attention.layer)
            copies.append(self.layers_observed)
            super().observe(attention)

    ranking = Recording()
    with lazyllm.enable(model, STAGES, ranking=ranking):
        for _ in range(2):
            families.generate(model, ids, 2)
    assert ranking.layers_observed == []
    assert [len(layers) for layers in {id(layers): layers for layers in copies}.values()] == [4, 4]


def test_a_ranking_observes_the_positions_of_keys(model, ids):
    observed = []

    class Observing(Own):
        def observe(self, attention):
            layer, keys, mask = attention.layer, attention.key_positions, attention.active_mask
            active = self.active(layer)
            assert attention.value.shape[:3] == attention.key.shape[:3] == (1, 2, len(keys))
            mask = torch.ones_like(keys, dtype=torch.bool) if mask is None else mask
            assert torch.equal(keys[mask].sort().values, active)
            importance = self.by_position(layer, torch.arange(1.0, len(keys) + 1))
            assert torch.equal((importance >= 0).nonzero()[:, 0], active)
            assert torch.equal(importance[keys[mask]], torch.arange(1.0, len(keys) + 1)[mask])
            observed.append((layer, active.tolist()))
            super().observe(attention)

    _, stats = generate_recorded(model, STAGES, ids, 6, ranking=Observing())
    assert observed == [(layer, step[layer].tolist()) for step in stats.positions for layer in (1, 3)]
