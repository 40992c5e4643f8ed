"""What users and their code hand to a model, or hook into it, is honoured as the unmodified model does, or refused."""

import families
import pytest
import torch
from checks import (
    PAD,
    STAGES,
    generate_alone,
    generate_recorded,
    honour_or_refuse,
    pad_left,
    random_ids,
    to_lists,
)
from marks import slow
from transformers import DynamicCache

import lazyllm
from lazyllm.hf.private import CACHE

LAST = 4


@pytest.fixture
def model():
    """One for each test, which may change it."""
    return families.build("llama", dtype=torch.float64, mlp_bias=True)


def batch(*lengths):
    return pad_left([random_ids(length) for length in lengths])


def logits(model, ids, mask, **options):
    """Logits of each step of a greedy generation, (steps, sequences, vocabulary)."""
    return torch.stack(families.generate(model, ids, 6, mask, pad_token_id=PAD, **options).logits)


def in_prepare(model, change):
    """Have `change` alter what `generate` prepares for each pass."""
    own = model.prepare_inputs_for_generation
    model.prepare_inputs_for_generation = lambda *args, **kwargs: change(own(*args, **kwargs))


def in_a_hook(model, change):
    model.register_forward_pre_hook(lambda module, args, kwargs: (args, change(kwargs)), with_kwargs=True)


def hide(inputs):
    """A mask over tokens 4 to 19, from the first pass on."""
    count, width = inputs["input_ids"].shape
    mask = torch.ones(count, inputs[CACHE].get_seq_length() + width, dtype=torch.int64)
    mask[:, 4:20] = 0
    return {**inputs, "attention_mask": mask}


def hide_later(inputs):
    """The same, from the second pass on."""
    return hide(inputs) if inputs[CACHE].get_seq_length() else inputs


def forget_later(inputs):
    """No mask from the second pass on, so that padding is shown."""
    return {**inputs, "attention_mask": None} if inputs[CACHE].get_seq_length() else inputs


def spread(inputs):
    """Positions twice as far apart."""
    return {**inputs, "position_ids": inputs["position_ids"] * 2}


@pytest.mark.parametrize("way", [in_prepare, slow(in_a_hook)])
@pytest.mark.parametrize("lengths", [[30], [30, 30], [30, 21]], ids=str)
@pytest.mark.parametrize("change", [hide, hide_later, forget_later, spread])
def test_inputs_changed_within_generate(model, way, change, lengths):
    ids, mask = batch(*lengths)
    plain = logits(model, ids, mask)
    way(model, change)
    changed, refused = honour_or_refuse(model, lambda: logits(model, ids, mask))
    assert refused == (change is not forget_later or lengths == [30, 21])
    assert change is forget_later or not torch.allclose(changed, plain, atol=1e-3), "the change does nothing"


@pytest.mark.parametrize("lengths", [[10], [10, 10], [10, 7]], ids=str)
def test_new_ids_alone_without_a_mask(model, lengths):
    """transformers takes them for the whole conversation: it cuts some off, at positions from the start."""
    ids, mask = batch(*lengths)
    new = torch.tensor([random_ids(8)] * len(lengths))

    def second_turn():
        first = families.generate(model, ids, 1, mask)
        return logits(model, new, None, past_key_values=first.past_key_values)

    _, refused = honour_or_refuse(model, second_turn)
    assert refused


def test_a_mask_with_holes_is_taken_alike_with_positions_and_without(model):
    """Without them the model counts hidden tokens, too."""
    ids, mask = families.prompt(30), torch.ones(1, 30, dtype=torch.int64)
    mask[:, 4:20] = 0
    outcomes = [
        honour_or_refuse(model, lambda given=given: model(ids, attention_mask=mask, logits_to_keep=1, **given).logits)
        for given in ({}, {"position_ids": torch.arange(30)[None]})
    ]
    assert outcomes[0][1] == outcomes[1][1]


@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sampling"])
def test_a_sequence_that_a_criterion_stops_continues_while_others_do(model, sampling):
    """Without an end-of-sequence token nothing is padded: the unmodified model generates further text."""
    ids, mask = batch(30, 21)

    def stop(input_ids, scores, **_):
        return torch.tensor([input_ids.shape[1] >= 33, False])

    def tokens():
        torch.manual_seed(0)
        options = {"do_sample": sampling, "max_new_tokens": 8, "eos_token_id": None, "pad_token_id": PAD}
        return model.generate(ids, attention_mask=mask, stopping_criteria=[stop], **options)[:, 30:].tolist()

    expected = tokens()
    with lazyllm.enable(model, ""):
        assert tokens() == expected
    if not sampling:
        with lazyllm.enable(model, STAGES):
            assert tokens() == generate_alone(
                model, [random_ids(30), random_ids(21)], max_new_tokens=8, eos_token_id=None
            )


@pytest.mark.parametrize("begins", ["chunks", "cached prefix"])
def test_first_protects_tokens_that_came_in_several_passes(model, begins):
    ids = families.prompt(30)
    with lazyllm.enable(model, STAGES, ranking=lazyllm.AttentionRanking(first=4), record_positions=True) as lazy:
        if begins == "chunks":
            families.generate(model, ids, 6, prefill_chunk_size=2)
        else:
            with torch.no_grad():
                cache = model(ids[:, :2], past_key_values=DynamicCache(), logits_to_keep=1).past_key_values
            families.generate(model, ids, 6, past_key_values=cache)
    for step in lazy.stats.positions[-6:]:
        assert all({0, 1, 2, 3} <= set(active.tolist()) for active in step)


# Hooks, set before or inside the `with`, see each token's state once in each layer.


def after(layer, direction):
    """An output hook that adds the direction."""
    return layer.register_forward_hook(lambda module, args, output: output + direction)


def before(layer, direction):
    """A forward pre-hook that adds the direction."""
    return layer.register_forward_pre_hook(lambda module, args: (args[0] + direction, *args[1:]))


# The layer with the hook, and the layer whose bias does the same.
@pytest.mark.parametrize(
    ("hook", "layer", "same_as"),
    [(after, 1, 1), (after, LAST, LAST), (after, 0, 0), (before, LAST, 3), (before, 2, 1), (before, 3, 2)],
    ids=["after a stage", "after the last", "after no stage", "before the last", "before a kept layer", "with a stage"],
)
@pytest.mark.parametrize("inside", [True, slow(False)], ids=["inside", "before"])
def test_steering_by_a_hook_is_steering_by_a_bias(model, ids, hook, layer, same_as, inside):
    direction = torch.randn(48, generator=torch.Generator().manual_seed(1)).double()
    unsteered, _ = generate_recorded(model, STAGES, ids, 12)
    with torch.no_grad():
        model.model.layers[same_as].mlp.down_proj.bias += direction
        expected, expected_stats = generate_recorded(model, STAGES, ids, 12)
        model.model.layers[same_as].mlp.down_proj.bias -= direction
    handle = None if inside else hook(model.model.layers[layer], direction)
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        handle = handle or hook(model.model.layers[layer], direction)
        actual = families.generate(model, ids, 12)
    handle.remove()
    assert expected_stats.num_computed[1:].max() > 1, "nothing was revived"
    assert torch.equal(actual.sequences, expected.sequences)
    assert to_lists(lazy.stats.positions) == to_lists(expected_stats.positions)
    assert not torch.allclose(torch.stack(actual.logits), torch.stack(unsteered.logits), atol=1e-2)
