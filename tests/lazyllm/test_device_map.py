"""A model over several devices, or offloaded to the CPU or to disk: the same tokens and rows as on one device."""

from __future__ import annotations

import families
import pytest
import torch
import transformers
from accelerate import cpu_offload, dispatch_model
from test_on_a_device import PARTS, STAGES, WAYS

import lazyllm

# Where each of the five layers is: the stages after layers 1 and 3 end within a device, or at its border.
PLACES = {"halves": "00011", "at a stage": "00111", "in turn": "01010", "offloaded": "0c0c1"}


def spread(model, places, *devices):
    """The model with its layers at `places`, by number of the device or c for the CPU, and all else on the first."""
    model = model.eval()
    decoder = next(name for name, part in model.named_children() if name != "lm_head" and name != "embed_out")
    (stack,) = (name for name, part in getattr(model, decoder).named_children() if len(list(part.children())) == 5)
    names = {name: devices[0].name for name, _ in model.named_children() if name != decoder}
    names |= {f"{decoder}.{name}": devices[0].name for name, _ in getattr(model, decoder).named_children()}
    del names[f"{decoder}.{stack}"]
    for index, place in enumerate(places):
        names[f"{decoder}.{stack}.{index}"] = "cpu" if place == "c" else devices[int(place)].name
    skipped = model._skip_keys_device_placement
    return dispatch_model(model, names, main_device=devices[0].name, skip_keys=skipped)


def answer(model, ids, stages=STAGES, mask=None, how=None):
    """Two turns: what is generated, and what was computed for it, by sequence."""
    record = {"record_positions": True, "record_importance": True}
    with lazyllm.enable(model, lazyllm.PruningSchedule(stages), **record, **(how or {})) as lazy:
        first = families.generate(model, ids, 5, mask)
        more = torch.cat([first.sequences, ids[:, -9:]], dim=1)
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(len(mask), more.shape[1] - mask.shape[1])], dim=1)
        second = families.generate(model, more, 5, mask, past_key_values=first.past_key_values)
    return second.sequences.tolist(), lazy.sequences


def check_same(found, expected):
    assert found[0] == expected[0]
    for stats, wanted in zip(found[1], expected[1], strict=True):
        assert stats.rows.tolist() == wanted.rows.tolist()
        assert stats.rows[1:].max() > 1
        for one, other in ((stats.positions, wanted.positions), (stats.computed, wanted.computed)):
            assert [[part.tolist() for part in step] for step in one] == [
                [part.tolist() for part in step] for step in other
            ]
        for one, other in zip(stats.importance, wanted.importance, strict=True):
            torch.testing.assert_close(one.cpu(), other)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_over_two_devices(device, other, family):
    model, ids = families.build(family), families.prompt(40)
    expected = answer(model, ids)
    model = spread(model, PLACES["in turn"], device, other)
    check_same(answer(model, ids.to(device.name)), expected)


@pytest.mark.parametrize("places", PLACES)
def test_a_batch_over_two_devices(device, other, places):
    model, ids = families.build("llama4"), torch.cat([families.prompt(40, seed) for seed in range(3)])
    mask = torch.ones_like(ids)
    mask[0, :3], mask[2, :30] = 0, 0
    expected = answer(model, ids, mask=mask)
    model = spread(model, PLACES[places], device, other)
    check_same(answer(model, ids.to(device.name), mask=mask.to(device.name)), expected)


@pytest.mark.parametrize("way", [*PARTS, "static"])
def test_every_ranking_over_two_devices(device, other, way):
    model, ids = families.build("llama"), families.prompt(40)
    stages, how = WAYS[way]
    stages = [(3, 0.6)] if way == "static" else stages
    with lazyllm.enable(model, lazyllm.PruningSchedule(stages), **how) as lazy:
        expected = families.generate(model, ids, 6)
    model = spread(model, PLACES["in turn"], device, other)
    with lazyllm.enable(model, lazyllm.PruningSchedule(stages), **how) as lazy_there:
        found = families.generate(model, ids.to(device.name), 6)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert lazy_there.stats.rows.tolist() == lazy.stats.rows.tolist()


class Recent(lazyllm.Selection):
    """A checked ranking that keeps the newest tokens."""

    def observe(self, layer, query, key, scaling, softcap):
        self.importance = self.by_position(layer, self.key_positions(layer).float())


def test_a_ranking_of_ones_own_over_two_devices(device, other):
    model, ids = families.build("llama"), families.prompt(40)
    stages = lazyllm.PruningSchedule(STAGES)
    with lazyllm.enable(model, stages, selection=Recent()):
        expected = families.generate(model, ids, 6).sequences.tolist()
    model = spread(model, PLACES["at a stage"], device, other)
    with lazyllm.enable(model, stages, selection=Recent()):
        assert families.generate(model, ids.to(device.name), 6).sequences.tolist() == expected


def test_the_model_is_dispatched_as_before(device, other):
    model, ids = families.build("llama"), families.prompt(40)
    plain = families.generate(model, ids, 6)
    model = spread(model, PLACES["offloaded"], device, other)
    before = [module.forward for module in model.modules()]
    answer(model, ids.to(device.name))
    assert [module.forward for module in model.modules()] == before
    assert model.model.layers[1].self_attn.q_proj.weight.device.type == "meta"
    assert families.generate(model, ids.to(device.name), 6).sequences.tolist() == plain.sequences.tolist()


def test_offload_to_disk(tmp_path):
    model, ids = families.build("llama"), families.prompt(40)
    expected = answer(model, ids)
    model.save_pretrained(tmp_path / "model")
    names = [f"model.{name}" for name in ("embed_tokens", "norm", "rotary_emb")] + ["lm_head"]
    places = dict.fromkeys(names, "cpu")
    places |= {f"model.layers.{index}": "disk" if index in (1, 4) else "cpu" for index in range(5)}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "offload"
    )
    assert model.model.layers[4].mlp.up_proj.weight.device.type == "meta"
    check_same(answer(model, ids), expected)


@pytest.mark.filterwarnings("ignore:You are calling .generate")
def test_offload_of_every_layer(device):
    model, ids = families.build("llama"), families.prompt(40)
    expected, score = answer(model, ids), lazyllm.log_likelihood(model, ids, [5, 6]).total
    model = cpu_offload(model, torch.device(device.name))
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    assert lazyllm.log_likelihood(model, ids, [5, 6]).total == pytest.approx(score)
    check_same(answer(model, ids.to(device.name), mask=torch.ones_like(ids).to(device.name)), expected)
