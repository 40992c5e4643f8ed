"""A selection of one's own is held to its contract; LazyLLM's own is trusted."""

from __future__ import annotations

import families
import pytest
import torch

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])


class Own(lazyllm.DynamicSelection):
    """LazyLLM's choice, put wrong by `spoil` from step `at` on."""

    at = 0

    def spoil(self, survivors):
        return survivors

    def survivors(self, segment):
        chosen = super().survivors(segment)
        return self.spoil(chosen) if self.cache.total - self.cache.prompt_length >= self.at else chosen


def selection(spoil, at=0, base=Own):
    return type("Own", (base,), {"spoil": lambda self, survivors: spoil(survivors), "at": at})


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
        ("position -1 go on", lambda survivors: torch.cat([survivors.new_tensor([-1]), survivors])),
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


def test_survivors_must_be_active(model, ids):
    class Deep(Own):
        def survivors(self, segment):
            # All positions, though the first stage left some behind.
            return super().survivors(segment) if segment.layers[0] == 0 else torch.arange(self.cache.total)

    with (
        pytest.raises(lazyllm.LazyLLMError, match=r"after layer 3 lets position .* not active"),
        lazyllm.enable(model, STAGES, selection=Deep),
    ):
        families.generate(model, ids, 2)


def test_a_frozen_selection_revives_nothing(model, ids):
    class Thawing(lazyllm.StaticSelection):
        def survivors(self, segment):
            frozen = super().survivors(segment)
            return frozen if self.cache.prefilling else torch.arange(self.cache.total)

    with (
        pytest.raises(lazyllm.LazyLLMError, match="revives position"),
        lazyllm.enable(model, lazyllm.PruningSchedule([(1, 0.6)]), selection=Thawing),
    ):
        families.generate(model, ids, 3)


def test_a_selection_that_keeps_the_contract_runs_as_lazyllms_own(model, ids):
    with lazyllm.enable(model, STAGES):
        expected = families.generate(model, ids, 8).sequences
    with lazyllm.enable(model, STAGES, selection=Own):
        assert torch.equal(families.generate(model, ids, 8).sequences, expected)


def test_a_selection_may_use_its_tensor_again(model, ids):
    class Reusing(Own):
        def survivors(self, segment):
            chosen = super().survivors(segment)
            self.buffer = torch.cat([chosen, torch.full((64,), -1)]) if segment.layers[0] == 0 else self.buffer
            self.buffer[: len(chosen)] = chosen
            return self.buffer[: len(chosen)]

    with lazyllm.enable(model, STAGES):
        expected = families.generate(model, ids, 8).sequences
    with lazyllm.enable(model, STAGES, selection=Reusing):
        assert torch.equal(families.generate(model, ids, 8).sequences, expected)


@pytest.mark.parametrize("selection", [lazyllm.Selection, lazyllm.FrozenSelection, Own(None)], ids=str)
def test_half_a_selection_is_refused(model, selection):
    with pytest.raises(lazyllm.LazyLLMError, match="whole subclass"):
        lazyllm.enable(model, STAGES, selection=selection)


def test_a_selection_can_ask_not_to_be_checked(model, ids):
    class Trusted(Own, checked=False):
        def survivors(self, segment):
            return swapped(super().survivors(segment))

    assert not Trusted.checked
    assert type("Heir", (Trusted,), {}).checked
    with lazyllm.enable(model, STAGES, selection=Trusted):
        families.generate(model, ids, 2)


def test_lazyllms_own_selections_are_not_checked(model, ids, monkeypatch):
    def check(*args):
        raise AssertionError("checked")

    monkeypatch.setattr("lazyllm.generation.check_survivors", check)
    with lazyllm.enable(model, STAGES):
        families.generate(model, ids, 3)
    with lazyllm.enable(model, STAGES, importance=lazyllm.Importance(queries=4, pooling=3)):
        families.generate(model, ids, 3)
    with lazyllm.enable(model, lazyllm.PruningSchedule([(1, 0.6)]), selection=lazyllm.StaticSelection):
        families.generate(model, ids, 3)
