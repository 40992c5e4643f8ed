"""Hooks of the user's own, set before or inside the `with`, see each token's state once in each layer."""

from __future__ import annotations

import families
import pytest
import torch

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])
LAST = 4


@pytest.fixture
def steered():
    """A model, and the direction that is to be added to hidden states."""
    return families.build("llama", mlp_bias=True), torch.randn(48, generator=torch.Generator().manual_seed(1))


def after(layer, direction):
    """An output hook that adds the direction."""
    return layer.register_forward_hook(lambda module, args, output: output + direction)


def before(layer, direction):
    """A forward pre-hook that adds the direction."""
    return layer.register_forward_pre_hook(lambda module, args: (args[0] + direction, *args[1:]))


# The layer with the hook, and the layer whose bias does the same.
@pytest.mark.parametrize(
    ("hook", "layer", "same_as"),
    [(after, 1, 1), (after, 3, 3), (after, 0, 0), (before, LAST, 3), (before, 2, 1), (before, 3, 2)],
    ids=["after a stage", "after the last stage", "after no stage", "last", "behind a stage", "with a stage"],
)
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "before"])
def test_steering_by_a_hook_is_steering_by_a_bias(steered, hook, layer, same_as, inside):
    model, direction = steered
    ids = families.prompt(40)
    bias = model.model.layers[same_as].mlp.down_proj.bias
    with lazyllm.enable(model, STAGES):
        unsteered = families.generate(model, ids, 12)
    with torch.no_grad():
        bias += direction
        with lazyllm.enable(model, STAGES) as lazy:
            expected = families.generate(model, ids, 12)
        bias -= direction
    rows = lazy.stats.rows
    if inside:
        with lazyllm.enable(model, STAGES) as lazy:
            handle = hook(model.model.layers[layer], direction)
            found = families.generate(model, ids, 12)
    else:
        handle = hook(model.model.layers[layer], direction)
        with lazyllm.enable(model, STAGES) as lazy:
            found = families.generate(model, ids, 12)
    handle.remove()
    assert rows[1:].max() > 1, "nothing was revived"
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.allclose(torch.stack(found.logits), torch.stack(expected.logits), atol=1e-3)
    assert torch.equal(lazy.stats.rows, rows)
    assert not torch.allclose(torch.stack(found.logits), torch.stack(unsteered.logits), atol=1e-2)


def test_hooks_on_the_whole_model_and_its_decoder_stay_outside(steered):
    model, _ = steered
    ids, seen = families.prompt(40), []
    with lazyllm.enable(model, STAGES):
        handles = [
            part.register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True)
            for part in (model, model.model)
        ]
        families.generate(model, ids, 1)
    for handle in handles:
        handle.remove()
    assert [kwargs["input_ids"].shape for kwargs in seen] == [(1, 40), (1, 40)]


@pytest.mark.parametrize("part", ["", "mlp", "self_attn", "input_layernorm"])
def test_hooks_in_the_last_layer_see_every_token_once(steered, part):
    """Without them the last layer computes keys and values first, and finishes the newest token alone."""
    model, _ = steered
    ids, module = families.prompt(40), model.model.layers[LAST].get_submodule(part)

    def shapes(generate):
        seen = []

        def hook(module, args, output):
            output = output[0] if isinstance(output, tuple) else output
            output[:, :1] += 1  # of the first row, whatever it is
            seen.append(output.shape)

        handle = module.register_forward_hook(hook)
        logits = torch.stack(generate().logits)
        handle.remove()
        return seen, logits

    expected, before = shapes(lambda: families.generate(model, ids, 4))
    with lazyllm.enable(model, lazyllm.PruningSchedule([(1, 1.0)])):
        found, after = shapes(lambda: families.generate(model, ids, 4))
    assert found == expected
    assert torch.allclose(before, after, atol=1e-4)
    with lazyllm.enable(model, STAGES) as lazy:
        found, _ = shapes(lambda: families.generate(model, ids, 4))
        assert [shape[1] for shape in found] == lazy.stats.rows[:, LAST].tolist()
