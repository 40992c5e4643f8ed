"""A ranking of one's own is held to its contract, in one line that names it; LazyLLM's own are trusted."""

from dataclasses import dataclass, field

import families
import pytest
import torch
from checks import STAGES, recorded, refuse

import lazyllm


class Own(lazyllm.Importance):
    """LazyLLM's choice, put wrong by `spoil` from step `at` on."""

    at = 0

    def spoil(self, survivors):
        return survivors

    def survivors(self, layer, count):
        chosen = super().survivors(layer, count)
        return self.spoil(chosen) if self.cache.total - self.cache.prompt_length >= self.at else chosen


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
    refuse("Own.survivors after layer 1", lambda: recorded(model, STAGES, ids, 4, selection=ranking))


def test_survivors_must_be_active(model, ids):
    class Deep(Own):
        def survivors(self, layer, count):  # all positions, though the first stage left some behind
            return super().survivors(layer, count) if layer == 1 else torch.arange(self.cache.total)

    refuse("Deep.survivors after layer 3", lambda: recorded(model, STAGES, ids, 2, selection=Deep()))


@pytest.mark.parametrize("base", [Own, lazyllm.StaticSelection])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: torch.rand(7),
        lambda found: found[None],
        lambda found: found / 0 * 0,
        lambda found: found.log(),
        lambda found: (8 * found).long(),
        lambda found: found.tolist(),
        lambda found: None,
    ],
    ids=["short", "2-D", "NaN", "negative", "whole numbers", "list", "none"],
)
def test_importance_is_one_number_a_position(model, ids, base, spoil):
    class Spoilt(base):
        def observe(self, layer, query, key, scaling, softcap):
            found = self.by_position(layer, lazyllm.newest_row(query, key, self.present(layer), scaling))
            self.importance = spoil(found)

    refuse("Spoilt.observe .*self.importance", lambda: recorded(model, "1:0.6", ids, 2, selection=Spoilt()))


def test_importance_of_keys_is_not_that_of_positions(model, ids):
    class Unplaced(lazyllm.Selection):
        def observe(self, layer, query, key, scaling, softcap):
            self.importance = lazyllm.newest_row(query, key, self.present(layer), scaling)

    refuse("as self.by_position makes", lambda: recorded(model, STAGES, ids, 2, selection=Unplaced()))


def test_what_ranks_for_good_needs_no_aux_cache(model, ids):
    class Once(lazyllm.Selection):
        for_good = True

        def observe(self, layer, query, key, scaling, softcap):
            self.importance = lazyllm.newest_row(query, key, self.seen(layer), scaling)

    assert recorded(model, "1:0.6", ids, 3, selection=Once())[1].aux_bytes.tolist() == [0, 0, 0]


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

    expected = recorded(model, STAGES, ids, 8)[0].sequences
    for ranking in (Own(), Reusing()):
        assert torch.equal(recorded(model, STAGES, ids, 8, selection=ranking)[0].sequences, expected)
    recorded(model, STAGES, ids, 2, selection=Trusted())
    assert not any(ranking.checked for ranking in (lazyllm.Importance, lazyllm.StaticSelection, Trusted))
    assert type("Heir", (Trusted,), {}).checked


@pytest.mark.parametrize(
    "wrong", [lazyllm.Selection, lazyllm.StaticSelection, Own, "queries:8", {"queries": 8}, torch.nn.Linear, 0], ids=str
)
def test_what_is_no_selection_is_refused(model, wrong):
    refuse("selection must be an instance", lambda: lazyllm.enable(model, STAGES, selection=wrong))


def test_a_generation_works_on_a_copy_of_the_selection(model, ids):
    """What a selection keeps reaches neither the next generation nor another thread."""
    kept = []

    @dataclass
    class Keeping(lazyllm.Importance):
        met: list = field(default_factory=list)

        def observe(self, layer, *args):
            self.met.append(layer)
            kept.append(self.met)
            super().observe(layer, *args)

    given = Keeping()
    with lazyllm.enable(model, STAGES, selection=given):
        for _ in range(2):
            families.generate(model, ids, 2)
    assert given.met == []
    assert [len(met) for met in {id(met): met for met in kept}.values()] == [4, 4]


def test_a_selection_is_told_positions_on_the_right_device(model, ids):
    seen = []

    class Asking(Own):
        def observe(self, layer, query, key, scaling, softcap):
            active, keys, present = self.active(layer), self.key_positions(layer), self.present(layer)
            assert active.device == keys.device == key.device
            assert self.values.shape[:3] == key.shape[:3] == (1, 2, len(keys))
            present = torch.ones_like(keys, dtype=torch.bool) if present is None else present
            assert torch.equal(keys[present].sort().values, active)
            importance = self.by_position(layer, torch.arange(1.0, len(keys) + 1))
            assert torch.equal((importance >= 0).nonzero()[:, 0], active)
            assert torch.equal(importance[keys[present]], torch.arange(1.0, len(keys) + 1)[present])
            seen.append((layer, active.tolist()))
            super().observe(layer, query, key, scaling, softcap)

    _, stats = recorded(model, STAGES, ids, 6, selection=Asking())
    assert seen == [(layer, step[layer].tolist()) for step in stats.positions for layer in (1, 3)]
