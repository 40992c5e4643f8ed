"""`lazyllm.select`: what it keeps is what a generation would let go on, at the cost of the layers up to there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import families
import naive_importance as naive
import pytest
import torch
from refusals import refuse

import lazyllm

SCHEDULES = {"one": [(2, 0.3)], "two": [(1, 0.6), (3, 0.5)], "none_last": [(0, 0.7), (3, 1.0)]}
PARTS = {"eq1": {}, "pooled": {"queries": 4, "pooling": 3}, "layers": {"layers": 2, "heads": "max"}, "all": naive.ALL}


def test_a_fraction_is_ranked_half_way(model, ids):
    found, expected = lazyllm.select(model, ids, 0.3), lazyllm.select(model, ids, "50%:0.3")
    assert torch.equal(found.positions, expected.positions)
    assert len(found.ids) == math.ceil(0.3 * ids.shape[1])
    assert torch.equal(found.ids, ids[0][found.positions])
    assert len(lazyllm.select(model, ids, keep=1).ids) == ids.shape[1]
    for wrong in (0, 1.5, True, float("nan")):
        with pytest.raises(lazyllm.LazyLLMError, match=r"keep|layer:keep"):
            lazyllm.select(model, ids, wrong)


@pytest.mark.parametrize("length", [1, 2, 33])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_keeps_what_the_formula_says(schedule, parts, length):
    model, ids = families.build("llama", dtype=torch.float64), families.prompt(length, seed=3)
    stages, importance = SCHEDULES[schedule], lazyllm.Importance(**PARTS[parts])
    expected = naive.run(model, ids[0].tolist(), stages, importance, 1)
    found = lazyllm.select(model, ids, stages, selection=importance)
    assert found.positions.tolist() == expected.active[0][-1]
    assert found.ids.tolist() == [int(ids[0, position]) for position in found.positions]
    assert found.ids.dtype == found.positions.dtype == torch.int64
    last = max(layer for layer, keep in stages if keep < 1)
    rows = [len(rows) for rows in expected.rows[0][: last + 1]]
    assert found.prompt_computed == pytest.approx(sum(rows) / length / 5)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_it_keeps_what_a_generation_lets_go_on(family):
    model, ids = families.build(family), families.prompt(40)
    for selection in (None, lazyllm.Importance(queries=4, pooling=3), lazyllm.StaticSelection()):
        stages = [(3, 0.4)] if selection and selection.single_stage else [(1, 0.6), (3, 0.5)]
        with lazyllm.enable(model, stages, selection=selection, record_positions=True) as lazy:
            families.generate(model, ids, 1)
        found = lazyllm.select(model, ids, stages, selection=selection)
        assert torch.equal(found.positions, lazy.stats.positions[0][4].cpu())


def test_no_layer_behind_the_last_stage_runs_and_the_model_is_as_before(model, ids):
    ran = []
    hooks = [
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
        for index, layer in enumerate(model.model.layers)
    ]
    before = model(ids).logits
    assert ran == [0, 1, 2, 3, 4]
    ran.clear()
    lazyllm.select(model, ids, "1:0.5,2:0.5")
    assert ran == [0, 1, 2]
    for hook in hooks:
        hook.remove()
    assert torch.equal(model(ids).logits, before)
    assert not any("forward" in vars(layer) for layer in model.model.layers)


def test_where_nothing_is_pruned_nothing_runs(model, ids):
    hook = model.model.layers[0].register_forward_hook(lambda *_: pytest.fail("the model ran"))
    for schedule in ("", "2:1", [(1, 1.0), (2, 1.0)]):
        found = lazyllm.select(model, ids, schedule)
        assert torch.equal(found.ids, ids[0])
        assert found.positions.tolist() == list(range(40))
        assert found.prompt_computed == 0
    hook.remove()


def test_a_model_without_a_head_will_do(model, ids):
    found = lazyllm.select(model.model, ids, "20%:0.6,60%:0.5")
    assert torch.equal(found.positions, lazyllm.select(model, ids, "0:0.6,2:0.5").positions)


def test_the_ends_of_a_prompt_stay_if_asked(model, ids):
    found = lazyllm.select(model, ids, "2:0.5", selection=lazyllm.Importance(first=6, last=9))
    assert {*range(6), *range(31, 40)} <= set(found.positions.tolist())
    assert len(found.positions) == 20


@dataclass
class EverySecond(lazyllm.Selection):
    """Keeps every second token; unless `sorted`, it breaks the contract of `survivors`."""

    sorted: bool

    def observe(self, layer, query, key, scaling, softcap):
        self.importance = torch.arange(float(self.cache.total))

    def survivors(self, layer, count):
        chosen = self.active(layer).flip(0)[::2]
        return chosen.sort().values if self.sorted else chosen


def test_a_ranking_of_ones_own_is_held_to_its_contract(model, ids):
    found = lazyllm.select(model, ids, "1:0.5,3:0.5", selection=EverySecond(sorted=True))
    assert found.positions.tolist() == list(range(3, 40, 4))
    refuse(
        "EverySecond.survivors after layer 1 is not sorted",
        lambda: lazyllm.select(model, ids, "1:0.5,3:0.5", selection=EverySecond(sorted=False)),
    )
    assert len(lazyllm.select(model, ids, "1:0.5").positions) == 20  # the model is free again


def test_ids_come_in_several_forms(model, ids):
    expected = lazyllm.select(model, ids, "1:0.5").positions
    for form in (ids[0], ids.tolist(), ids[0].tolist(), tuple(ids[0].tolist())):
        assert torch.equal(lazyllm.select(model, form, "1:0.5").positions, expected)


def test_what_it_cannot_do_it_refuses_in_one_line(model, ids):
    for wrong in (ids.expand(2, -1), ids.int(), "a b", [1.0], 5, None, ids[None]):
        refuse("ids must be token ids of one text", lambda wrong=wrong: lazyllm.select(model, wrong, "1:0.5"))
    refuse("ids must hold a token", lambda: lazyllm.select(model, [], "1:0.5"))
    refuse("ids of the model's vocabulary, 0 to 96", lambda: lazyllm.select(model, [5, 97], "1:0.5"))
    refuse("the last useful place is after layer 3", lambda: lazyllm.select(model, ids, "4:0.5"))
    static = lazyllm.StaticSelection()
    refuse("StaticSelection prunes at one stage", lambda: lazyllm.select(model, ids, "1:0.5,2:0.5", selection=static))
    refuse("is a class: give an instance", lambda: lazyllm.select(model, ids, "1:0.5", selection=lazyllm.Importance))
    refuse("is not a Hugging Face model", lambda: lazyllm.select(5, ids, "1:0.5"))
    with lazyllm.enable(model, "1:0.5"):
        refuse("already enabled on this model", lambda: lazyllm.select(model, ids, "1:0.5"))
    model.train()
    refuse("call model.eval\\(\\) before selecting", lambda: lazyllm.select(model, ids, "1:0.5"))
    model.eval()
