"""A generation belongs to its cache: steps of one's own, and what they are refused."""

from __future__ import annotations

import families
import pytest
import torch
from refusals import refuse
from transformers import DynamicCache

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])
KEEP_ALL = lazyllm.PruningSchedule([(1, 1.0)])


def continued(model, cache, token=5):
    """One decoding step of one's own."""
    with torch.no_grad():
        return model(torch.tensor([[token]]), past_key_values=cache, logits_to_keep=1)


def test_a_cache_ends_with_its_with(model, ids):
    with lazyllm.enable(model, STAGES):
        cache = families.generate(model, ids, 3).past_key_values
    keys = cache.generation.keys[0].view.clone()
    refuse("belongs to a generation", lambda: continued(model, cache))
    with lazyllm.enable(model, STAGES):
        refuse("earlier generation", lambda: continued(model, cache))
    assert torch.equal(cache.generation.keys[0].view, keys)


def test_a_cache_is_no_other_models(model, ids):
    other = families.build("llama", seed=1)
    with lazyllm.enable(model, STAGES), lazyllm.enable(other, STAGES):
        cache = families.generate(model, ids, 3).past_key_values
        refuse("another model", lambda: continued(other, cache))
        continued(model, cache)
    with lazyllm.enable(model, STAGES):
        cache = families.generate(model, ids, 3).past_key_values
        keys = cache.generation.keys[0].view.clone()
        refuse("belongs to a generation", lambda: continued(other, cache))
        assert torch.equal(cache.generation.keys[0].view, keys)


def test_generations_alternate_step_by_step(model, ids):
    prompts = [ids, families.prompt(31, seed=5)]
    with lazyllm.enable(model, STAGES), torch.no_grad():
        expected = [families.generate(model, p, 6).sequences[0, p.shape[1] :].tolist() for p in prompts]
        outputs = [model(prompt, logits_to_keep=1) for prompt in prompts]
        found = [[], []]
        for _ in range(6):
            for which in range(2):
                token = int(outputs[which].logits[0, -1].argmax())
                found[which].append(token)
                outputs[which] = continued(model, outputs[which].past_key_values, token)
    assert found == expected


def test_guidance_runs_two_generations(model, ids):
    guided = {"max_new_tokens": 6, "do_sample": False, "guidance_scale": 1.5, "negative_prompt_ids": ids[:, :20]}
    before = model.generate(ids, **guided)
    with lazyllm.enable(model, KEEP_ALL):
        assert torch.equal(model.generate(ids, **guided), before)


def test_one_cache_takes_one_pass_at_a_time(model, ids):
    caught = []
    with lazyllm.enable(model, STAGES), torch.no_grad():
        cache = families.generate(model, ids, 2).past_key_values

        def again(module, args):
            if not caught:
                caught.append(None)
                refuse("under way already", lambda: continued(model, cache))

        hook = model.model.layers[2].register_forward_pre_hook(again)
        continued(model, cache)
        hook.remove()
    assert caught


def test_a_pass_that_broke_off_leaves_no_cache_to_go_on_with(model, ids):
    def broken(*_):
        raise RuntimeError("broken")

    with lazyllm.enable(model, STAGES):
        cache = families.generate(model, ids, 2).past_key_values
        hook = model.model.layers[2].register_forward_pre_hook(broken)
        with pytest.raises(RuntimeError, match="broken"):
            continued(model, cache)
        hook.remove()
        refuse("broke off", lambda: continued(model, cache))


def test_a_cache_of_ones_own_becomes_the_generations(model, ids):
    """Whoever made it goes on with it, as with the unmodified model."""

    def passes(cache, start, stop):
        with torch.no_grad():
            return model(ids[:, start:stop], past_key_values=cache, logits_to_keep=1).logits

    with lazyllm.enable(model, STAGES) as lazy:
        cache = DynamicCache()
        found = [passes(cache, start, start + 10) for start in range(0, 40, 10)]
        assert cache.get_seq_length() == 40
        rows = lazy.stats.rows
        assert rows[:, 0].tolist() == [10] * 4
        with torch.no_grad():
            begun = model(ids[:, :10], logits_to_keep=1)
        expected = [begun.logits, *(passes(begun.past_key_values, start, start + 10) for start in (10, 20, 30))]
        assert torch.equal(torch.cat(found), torch.cat(expected))
        assert torch.equal(lazy.stats.rows, rows)
        refused = DynamicCache()
        refuse("mask is of", lambda: model(ids, past_key_values=refused, attention_mask=ids[:, :9], logits_to_keep=1))
        assert torch.equal(passes(refused, 0, 10), begun.logits)  # a pass that was refused has not taken it
    refuse("belongs to a generation", lambda: passes(cache, 0, 1))
    refuse("belongs to a generation", lambda: model.generate(ids, past_key_values=cache, max_new_tokens=2))


def test_a_prompt_that_begins_elsewhere_is_refused(model, ids):
    def first_pass(**kwargs):
        def call():
            with lazyllm.enable(model, STAGES), torch.no_grad():
                model(ids, logits_to_keep=1, **kwargs)

        return call

    refuse("mask is of shape \\(1, 50\\)", first_pass(attention_mask=torch.ones(1, 50, dtype=torch.int64)))
    refuse("position_ids are not 0 to 39", first_pass(position_ids=torch.arange(10, 50)[None]))
    refuse("position_ids are not 0 to 39", first_pass(position_ids=torch.arange(20).repeat(2)[None]))
    refuse("position_ids, or the attention mask .* for 20", first_pass(position_ids=torch.arange(20)[None]))
    first_pass(attention_mask=torch.ones_like(ids), position_ids=torch.arange(40)[None])()


def test_a_token_by_token_loop_is_right(model, ids):
    def logits(schedule):
        found, cache = [], None
        with lazyllm.enable(model, schedule), torch.no_grad():
            for position in range(ids.shape[1]):
                output = model(ids[:, position : position + 1], past_key_values=cache)
                cache = output.past_key_values
                found.append(output.logits[0, 0])
        return torch.stack(found)

    with torch.no_grad():
        expected = model(ids).logits[0]
    assert torch.allclose(logits(KEEP_ALL), expected, atol=1e-4)
    assert not torch.allclose(logits(STAGES), expected, atol=1e-2)


def test_nobody_else_looks_into_the_cache(model, ids):
    """Methods that compress the cache, such as kvpress's, do so in hooks on the attention."""

    def compress(module, args, kwargs, output):
        layer = kwargs["past_key_values"].layers[module.layer_idx]
        layer.keys = layer.keys[:, :, ::2]

    def call():
        hooks = [layer.self_attn.register_forward_hook(compress, with_kwargs=True) for layer in model.model.layers]
        try:
            with lazyllm.enable(model, STAGES):
                families.generate(model, ids, 2)
        finally:
            for hook in hooks:
                hook.remove()

    refuse("compress the cache", call)


def test_a_mask_that_hides_tokens_is_seen_in_generate_too(model, ids):
    def call():
        with lazyllm.enable(model, STAGES):
            begun = families.generate(model, ids, 4)
            mask = torch.ones_like(begun.sequences)
            mask[0, :10] = 0
            model.generate(begun.sequences, attention_mask=mask, past_key_values=begun.past_key_values)

    refuse("hides tokens that an earlier pass has computed", call)

    def loop(model, input_ids, **kwargs):
        output = model(input_ids, attention_mask=torch.ones_like(input_ids), logits_to_keep=1)
        mask = torch.ones(1, 41, dtype=torch.int64)
        mask[0, 5] = 0
        model(ids[:, :1], attention_mask=mask, past_key_values=output.past_key_values)

    def in_a_loop_of_ones_own():
        with lazyllm.enable(model, STAGES):
            model.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=loop)

    refuse("hides tokens that an earlier pass has computed", in_a_loop_of_ones_own)


def test_a_mask_shorter_than_the_prompt_is_named(model, ids):
    def call():
        with lazyllm.enable(model, STAGES):
            model.generate(ids, attention_mask=torch.ones(1, 35, dtype=torch.int64), max_new_tokens=2)

    refuse("mask is of shape|the attention mask they are counted from, are for 35 tokens", call)


def test_a_pass_without_tokens_says_what_a_conversation_goes_on_with(model, ids):
    with lazyllm.enable(model, STAGES):
        output = families.generate(model, ids, 3)
        more = {"past_key_values": output.past_key_values, "max_new_tokens": 2}
        refuse("goes on with all its tokens so far", lambda: model.generate(ids[:, :5], **more))


def test_inference_mode_may_end_between_steps(model, ids):
    with lazyllm.enable(model, STAGES):
        expected = families.generate(model, ids, 3).logits
        with torch.inference_mode():
            output = model(ids, logits_to_keep=1)
        for step in range(3):
            assert torch.equal(output.logits[:, 0], expected[step])
            output = continued(model, output.past_key_values, int(output.logits[0, 0].argmax()))


def test_a_dtype_that_changes_between_steps_is_named(model, ids):
    with lazyllm.enable(model, STAGES), torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            cache = model(ids, logits_to_keep=1).past_key_values
        refuse("computed in torch.bfloat16 before and in torch.float32 now", lambda: continued(model, cache))
