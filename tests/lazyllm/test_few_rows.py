"""Linear layers of few rows: what they compute is what they always compute, and only they are touched."""

from __future__ import annotations

import copy
import pickle

import families
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import lazyllm

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()),
    reason="only where PyTorch has MKL and oneDNN few rows are computed so",
)


@pytest.fixture(scope="module")
def model():
    return families.build("qwen2", num_hidden_layers=3)  # with biases


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 40, 128, 129])
def test_few_rows_give_what_they_give_without(model, rows):
    states = torch.randn(1, rows, 48, generator=torch.Generator().manual_seed(rows))
    layers = [module for module in model.modules() if type(module) is nn.Linear and module.in_features == 48]
    assert {layer.bias is None for layer in layers} == {True, False}
    expected = [layer(states) for layer in layers]
    strided = states.transpose(0, 1).expand(rows, 2, 48)[:, 0][None]
    with lazyllm.enable(model, "0:0.5"):
        found = [(layer(states), layer(states[0]), layer(strided)) for layer in layers]
    for whole, parts in zip(expected, found, strict=True):
        for part in parts:
            assert part.is_contiguous()
            torch.testing.assert_close(part, whole.view_as(part), rtol=1e-5, atol=1e-6)
        assert parts[0].shape == whole.shape


@torch.no_grad()
@pytest.mark.parametrize(("rows", "expected"), [(3, False), (5, True), (128, True), (129, False)])
def test_onednn_computes_what_it_is_faster_at(model, rows, expected):
    def used():
        with torch.profiler.profile() as profiler:
            model.lm_head(torch.zeros(1, rows, 48))
        return any("_linear_pointwise" in event.key for event in profiler.key_averages())

    with lazyllm.enable(model, "0:0.5"):
        assert used() == expected
        with torch.backends.mkldnn.flags(enabled=False):
            assert not used()
    assert not used()


@torch.no_grad()
def test_autocast_decides_as_ever(model):
    layers = [model.lm_head, model.model.layers[0].self_attn.q_proj]
    assert [layer.bias is None for layer in layers] == [True, False]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for rows in (1, 3, 40):
            states = torch.randn(1, rows, 48)
            expected = [layer(states) for layer in layers]
            with lazyllm.enable(model, "0:0.5"):
                found = [layer(states) for layer in layers]
            assert all(map(torch.equal, found, expected))
        ids = families.prompt(150)
        with lazyllm.enable(model, "0:0.5") as lazy:
            model.generate(ids, max_new_tokens=4, min_new_tokens=4)
    assert lazy.stats.steps == 4


@torch.no_grad()
def test_weights_that_are_changed_meanwhile_count(model):
    changed = copy.deepcopy(model)
    states = torch.randn(1, 5, 48)
    with lazyllm.enable(changed, "0:0.5"):
        prune.l1_unstructured(changed.lm_head, "weight", 0.9)
        found = changed.lm_head(states)
    assert torch.equal(found, states @ changed.lm_head.weight.T)
    assert not torch.allclose(found, model.lm_head(states))


def test_gradients_flow_where_they_are_asked_for(model):
    layer = copy.deepcopy(model).lm_head
    holder = copy.deepcopy(model)
    with torch.enable_grad(), lazyllm.enable(holder, "0:0.5"):
        for rows in (1, 3, 40):
            states = torch.randn(1, rows, 48, requires_grad=True)
            expected = torch.autograd.grad(layer(states).square().sum(), (states, layer.weight))
            found = torch.autograd.grad(holder.lm_head(states).square().sum(), (states, holder.lm_head.weight))
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs)


@torch.no_grad()
def test_other_dtypes_and_empty_inputs_go_the_usual_way(model):
    layer = model.lm_head
    with lazyllm.enable(model, "0:0.5"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.zeros(1, 3, 48)).dtype == torch.bfloat16
    with lazyllm.enable(model, "0:0.5"):
        assert layer(torch.zeros(1, 0, 48)).shape == (1, 0, families.VOCABULARY)
        with pytest.raises(RuntimeError, match="dtype"):
            layer(torch.zeros(1, 3, 48, dtype=torch.float64))


def test_where_nothing_is_pruned_the_layers_run_as_ever(model):
    states = torch.randn(1, 3, 48)
    with lazyllm.enable(model, "0:1.0"):
        assert "forward" not in vars(model.lm_head)
        assert torch.equal(model.lm_head(states), nn.Linear.forward(model.lm_head, states))


def test_what_is_copied_meanwhile_is_a_plain_layer(model):
    states = torch.randn(1, 3, 48)
    with lazyllm.enable(model, "0:0.5"):
        twins = [copy.deepcopy(model.lm_head), pickle.loads(pickle.dumps(model.lm_head))]
    for twin in twins:
        assert torch.equal(twin(states), model.lm_head(states))
        with torch.no_grad():
            twin.weight.zero_()
        assert not twin(states).any()
    assert model.lm_head(states).any()


def test_a_layer_of_ones_own_is_left_alone(model):
    class Own(nn.Linear):
        pass

    changed = copy.deepcopy(model)
    changed.lm_head = Own(48, families.VOCABULARY)
    changed.model.layers[0].mlp.up_proj.forward = lambda rows: nn.Linear.forward(
        changed.model.layers[0].mlp.up_proj, rows
    )
    mine = changed.model.layers[0].mlp.up_proj.forward
    with lazyllm.enable(changed, "0:0.5"):
        assert "forward" not in vars(changed.lm_head)
        assert changed.model.layers[0].mlp.up_proj.forward is mine
        assert "forward" in vars(changed.model.layers[0].mlp.down_proj)
    assert "forward" not in vars(changed.model.layers[0].mlp.down_proj)
    assert changed.model.layers[0].mlp.up_proj.forward is mine
