"""A ranking of one's own is held to its contract, in one line that names it; LazyLLM's own are trusted."""

from dataclasses import dataclass, field

import families
import pytest
import torch
from checks import STAGES, assert_refused, generate_recorded

import lazyllm


class Own(lazyllm.AttentionRanking):
    """LazyLLM's choice, put wrong by `spoil` from step `at` on."""

    at = 0

    def spoil(self, survivors):
        return survivors

    def survivors(self, layer, count):
        chosen = super().survivors(layer, count)
        return self.spoil(chosen) if self.sequence.num_tokens - self.sequence.prompt_length >= self.at else chosen


def swapped(survivors):
    return torch.cat([survivors[1:2], survivors[:1], survivors[2:]])


@pytest.mark.parametrize("at", [0, 2], ids=["prefilling", "decoding"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda survivors: survivors[:-1],
        lambda survivors: survivors[:0],
        swapped,
        lambda survivors: torch.cat([survivors[:1], survivors[:1], survivors[1:]]),
        lambda survivors: torch.cat([survivors.new_tensor([-1]), survivors]),
        lambda survivors: survivors.tolist(),
        lambda survivors: survivors.int(),
        lambda survivors: survivors > 3,
        lambda survivors: survivors[None],
    ],
    ids=["not the newest", "none", "unsorted", "twice", "none such", "list", "int32", "bool", "2-D"],
)
def test_survivors_that_break_the_contract_are_named(model, ids, spoil, at):
    ranking = type("Own", (Own,), {"spoil": lambda self, survivors: spoil(survivors), "at": at})()
    assert_refused("Own.survivors after layer 1", lambda: generate_recorded(model, STAGES, ids, 4, ranking=ranking))


def test_survivors_must_be_active(model, ids):
    class Deep(Own):
        def survivors(self, layer, count):  # all positions, though the first stage left some behind
            return super().survivors(layer, count) if layer == 1 else torch.arange(self.sequence.num_tokens)

    assert_refused("Deep.survivors after layer 3", lambda: generate_recorded(model, STAGES, ids, 2, ranking=Deep()))


@pytest.mark.parametrize("base", [Own, lazyllm.StaticRanking])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda actual: torch.rand(7),
        lambda actual: actual[None],
        lambda actual: actual / 0 * 0,
        lambda actual: actual.log(),
        lambda actual: (8 * actual).long(),
        lambda actual: actual.tolist(),
        lambda actual: None,
    ],
    ids=["short", "2-D", "NaN", "negative", "whole numbers", "list", "none"],
)
def test_importance_is_one_number_a_position(model, ids, base, spoil):
    class Spoilt(base):
        def observe(self, attention):
            self.importance = spoil(self.by_position(attention.layer, attention.probabilities().mean(dim=(1, 2, 3))[0]))

    assert_refused(
        "Spoilt.observe .*self.importance", lambda: generate_recorded(model, "1:0.6", ids, 2, ranking=Spoilt())
    )


def test_what_ranks_for_good_needs_no_aux_cache(model, ids):
    class Once(lazyllm.Ranking):
        for_good = True

        def observe(self, attention):
            self.importance = attention.probabilities().mean(dim=(1, 2, 3))[0]

    assert generate_recorded(model, "1:0.6", ids, 3, ranking=Once())[1].aux_bytes.tolist() == [0, 0, 0]


def test_a_selection_that_keeps_the_contract_runs_as_lazyllms_own(model, ids):
    class Reusing(Own):
        """It uses its tensor again."""

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


@pytest.mark.parametrize(
    "wrong", [lazyllm.Ranking, lazyllm.StaticRanking, Own, "queries:8", {"queries": 8}, torch.nn.Linear, 0], ids=str
)
def test_what_is_no_selection_is_refused(model, wrong):
    assert_refused("ranking must be an instance", lambda: lazyllm.enable(model, STAGES, ranking=wrong))


def test_a_generation_works_on_a_copy_of_the_selection(model, ids):
    """A ranking's own state reaches neither the next generation nor another thread."""
    kept = []

    @dataclass
    class Keeping(lazyllm.AttentionRanking):
        met: list = field(default_factory=list)

        def observe(self, attention):
            self.met.append(attention.layer)
            kept.append(self.met)
            super().observe(attention)

    given = Keeping()
    with lazyllm.enable(model, STAGES, ranking=given):
        for _ in range(2):
            families.generate(model, ids, 2)
    assert given.met == []
    assert [len(met) for met in {id(met): met for met in kept}.values()] == [4, 4]


def test_a_selection_is_told_positions_on_the_right_device(model, ids):
    seen = []

    class Asking(Own):
        def observe(self, attention):
            layer, key = attention.layer, attention.key
            active, keys, present = self.active(layer), attention.key_positions, attention.active_mask
            assert active.device == keys.device == key.device
            assert attention.value.shape[:3] == key.shape[:3] == (1, 2, len(keys))
            present = torch.ones_like(keys, dtype=torch.bool) if present is None else present
            assert torch.equal(keys[present].sort().values, active)
            importance = self.by_position(layer, torch.arange(1.0, len(keys) + 1))
            assert torch.equal((importance >= 0).nonzero()[:, 0], active)
            assert torch.equal(importance[keys[present]], torch.arange(1.0, len(keys) + 1)[present])
            seen.append((layer, active.tolist()))
            super().observe(attention)

    _, stats = generate_recorded(model, STAGES, ids, 6, ranking=Asking())
    assert seen == [(layer, step[layer].tolist()) for step in stats.positions for layer in (1, 3)]
