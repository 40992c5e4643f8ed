"""A selection of one's own is held to its contract; LazyLLM's own is trusted."""

from __future__ import annotations

from dataclasses import dataclass, field

import families
import pytest
import torch

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])


class Own(lazyllm.Importance):
    """LazyLLM's choice, put wrong by `spoil` from step `at` on."""

    at = 0

    def spoil(self, survivors):
        return survivors

    def survivors(self, layer, count):
        chosen = super().survivors(layer, count)
        return self.spoil(chosen) if self.cache.total - self.cache.prompt_length >= self.at else chosen


def selection(spoil, at=0, base=Own):
    return type("Own", (base,), {"spoil": lambda self, survivors: spoil(survivors), "at": at})()


def swapped(survivors):
    return torch.cat([survivors[1:2], survivors[:1], survivors[2:]])


def doubled(survivors):
    return torch.cat([survivors[:1], survivors[:1], survivors[1:]])


@pytest.mark.parametrize("at", [0, 2], ids=["prefilling", "decoding"])
@pytest.mark.parametrize(
    ("says", "spoil"),
    [
        ("leaves out the newest", lambda survivors: survivors[:-1]),
        ("leaves out the newest", lambda survivors: survivors[:0]),
        ("is not sorted", swapped),
        ("is not sorted", lambda survivors: survivors.flip(0)),
        ("has duplicates", doubled),
        ("a position go on that is not active", lambda survivors: torch.cat([survivors.new_tensor([-1]), survivors])),
        ("returned a list", lambda survivors: survivors.tolist()),
        ("returned a tensor of torch.int32", lambda survivors: survivors.int()),
        ("returned a tensor of torch.bool", lambda survivors: survivors > 3),
        ("shape \\(1, ", lambda survivors: survivors[None]),
    ],
)
def test_survivors_that_break_the_contract_are_named(model, ids, says, spoil, at):
    with (
        pytest.raises(lazyllm.LazyLLMError, match=says) as error,
        lazyllm.enable(model, STAGES, selection=selection(spoil, at)),
    ):
        families.generate(model, ids, 4)
    assert "Own.survivors after layer 1" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda own, key: torch.rand(7),
            r"shape \(7,\): it is one number for each of 40",
        ),
        (lambda own, key: own.importance[None], r"shape \(1, 40\)"),
        (lambda own, key: own.importance / 0 * 0, "with NaN"),
        (lambda own, key: own.importance.tolist(), "as a list"),
        (lambda own, key: None, "as a NoneType"),
    ],
)
def test_importance_is_one_number_a_position(model, ids, spoil, says):
    class Spoilt(Own):
        def observe(self, layer, query, key, scaling, softcap):
            super().observe(layer, query, key, scaling, softcap)
            self.importance = spoil(self, key)

    with (
        pytest.raises(lazyllm.LazyLLMError, match=f"Spoilt.observe left self.importance .*{says}") as error,
        lazyllm.enable(model, STAGES, selection=Spoilt()),
    ):
        families.generate(model, ids, 2)
    assert "Spoilt.observe" in str(error.value)
    assert "\n" not in str(error.value)


def test_importance_of_what_is_frozen_is_checked_too(model, ids):
    class Frozen(lazyllm.FrozenSelection):
        def observe(self, layer, query, key, scaling, softcap):
            self.importance = [1.0]

    with (
        pytest.raises(lazyllm.LazyLLMError, match=r"Frozen.observe left self.importance as a list"),
        lazyllm.enable(model, lazyllm.PruningSchedule([(1, 0.6)]), selection=Frozen()),
    ):
        families.generate(model, ids, 2)


def test_importance_of_keys_is_not_that_of_positions(model, ids):
    class Unplaced(lazyllm.Selection):
        def observe(self, layer, query, key, scaling, softcap):
            self.importance = lazyllm.newest_row(query, key, self.present(layer), scaling)

    with (
        pytest.raises(lazyllm.LazyLLMError, match=r"as self.by_position makes of one for each key"),
        lazyllm.enable(model, STAGES, selection=Unplaced()),
    ):
        families.generate(model, ids, 2)


def test_survivors_must_be_active(model, ids):
    class Deep(Own):
        def survivors(self, layer, count):
            # All positions, though the first stage left some behind.
            return super().survivors(layer, count) if layer == 1 else torch.arange(self.cache.total)

    with (
        pytest.raises(lazyllm.LazyLLMError, match=r"after layer 3 lets a position go on that is not active"),
        lazyllm.enable(model, STAGES, selection=Deep()),
    ):
        families.generate(model, ids, 2)


def test_a_frozen_selection_revives_nothing(model, ids):
    class Thawing(lazyllm.StaticSelection):
        def survivors(self, layer, count):
            frozen = super().survivors(layer, count)
            return frozen if self.cache.prefilling else torch.arange(self.cache.total)

    with (
        pytest.raises(lazyllm.LazyLLMError, match="revives a token"),
        lazyllm.enable(model, lazyllm.PruningSchedule([(1, 0.6)]), selection=Thawing()),
    ):
        families.generate(model, ids, 3)


def test_a_selection_that_keeps_the_contract_runs_as_lazyllms_own(model, ids):
    with lazyllm.enable(model, STAGES):
        expected = families.generate(model, ids, 8).sequences
    with lazyllm.enable(model, STAGES, selection=Own()):
        assert torch.equal(families.generate(model, ids, 8).sequences, expected)


def test_a_selection_may_use_its_tensor_again(model, ids):
    class Reusing(Own):
        def survivors(self, layer, count):
            chosen = super().survivors(layer, count)
            self.buffer = torch.cat([chosen, torch.full((64,), -1)]) if layer == 1 else self.buffer
            self.buffer[: len(chosen)] = chosen
            return self.buffer[: len(chosen)]

    with lazyllm.enable(model, STAGES):
        expected = families.generate(model, ids, 8).sequences
    with lazyllm.enable(model, STAGES, selection=Reusing()):
        assert torch.equal(families.generate(model, ids, 8).sequences, expected)


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (lazyllm.Selection, "lazyllm.Selection is not a whole ranking: give an instance of a subclass"),
        (lazyllm.FrozenSelection, "lazyllm.FrozenSelection is not a whole ranking: give an instance of a subclass"),
        (lazyllm.StaticSelection, r"give an instance, lazyllm\.StaticSelection\(\)"),
        (lazyllm.Importance, r"give an instance, lazyllm\.Importance\(\)"),
        (Own, r"give an instance, Own\(\)"),
        ("queries:8", "must be a ranking such as"),
        ({"queries": 8}, "must be a ranking such as"),
        (torch.nn.Linear, "must be a ranking such as"),
        (0, "must be a ranking such as"),
        (False, "must be a ranking such as"),
    ],
    ids=str,
)
def test_what_is_no_selection_is_refused(model, selection, says):
    with pytest.raises(lazyllm.LazyLLMError, match=says) as error:
        lazyllm.enable(model, STAGES, selection=selection)
    assert "\n" not in str(error.value)


def test_a_generation_works_on_a_copy_of_the_selection(model, ids):
    """What a selection keeps reaches neither the next generation nor another thread."""

    @dataclass
    class Keeping(lazyllm.Importance):
        met: list = field(default_factory=list)

        def observe(self, layer, *args):
            self.met.append(layer)
            kept.append(self.met)
            super().observe(layer, *args)

    kept, given = [], Keeping()
    with lazyllm.enable(model, STAGES, selection=given):
        for _ in range(2):
            families.generate(model, ids, 2)
    assert given.met == []
    assert not hasattr(given, "cache")
    assert [len(met) for met in {id(met): met for met in kept}.values()] == [4, 4]


def test_a_selection_is_told_positions_on_the_right_device(model, ids):
    seen = []

    class Asking(Own):
        def observe(self, layer, query, key, scaling, softcap):
            active, keys, present = self.active(layer), self.key_positions(layer), self.present(layer)
            assert active.device == keys.device == key.device
            assert len(keys) == key.shape[2]
            assert self.values.shape[:3] == key.shape[:3]
            present = torch.ones_like(keys, dtype=torch.bool) if present is None else present
            assert torch.equal(keys[present].sort().values, active)
            importance = self.by_position(layer, torch.arange(1.0, len(keys) + 1))
            assert torch.equal((importance >= 0).nonzero()[:, 0], active)
            assert torch.equal(importance[keys[present]], torch.arange(1.0, len(keys) + 1)[present])
            seen.append((layer, active.tolist()))
            super().observe(layer, query, key, scaling, softcap)

    with lazyllm.enable(model, STAGES, selection=Asking(), record_positions=True) as lazy:
        families.generate(model, ids, 6)
    expected = [(layer, step[layer].tolist()) for step in lazy.stats.positions for layer in (1, 3)]
    assert seen == expected
    assert seen[0] == (1, list(range(40)))


def test_a_selection_can_ask_not_to_be_checked(model, ids):
    class Trusted(Own, checked=False):
        def survivors(self, layer, count):
            return swapped(super().survivors(layer, count))

    assert not Trusted.checked
    assert type("Heir", (Trusted,), {}).checked
    with lazyllm.enable(model, STAGES, selection=Trusted()):
        families.generate(model, ids, 2)


def test_lazyllms_own_selections_are_not_checked(model, ids, monkeypatch):
    def check(*args):
        raise AssertionError("checked")

    monkeypatch.setattr("lazyllm.core.state.check_survivors", check)
    with lazyllm.enable(model, STAGES):
        families.generate(model, ids, 3)
    with lazyllm.enable(model, STAGES, selection=lazyllm.Importance(queries=4, pooling=3)):
        families.generate(model, ids, 3)
    with lazyllm.enable(model, lazyllm.PruningSchedule([(1, 0.6)]), selection=lazyllm.StaticSelection()):
        families.generate(model, ids, 3)
