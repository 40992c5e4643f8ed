"""Models of text and pictures: text alone is as in any model, and a picture is right or refused in one line."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import families
import pictures
import pytest
import replay
import torch
from batching import padded
from refusals import refuse
from transformers import LogitsProcessor

import lazyllm

STAGES = [(1, 0.6), (3, 0.5)]
QWENS = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


@pytest.fixture(scope="module", params=QWENS)
def qwen(request):
    return pictures.build(request.param)


@pytest.fixture(scope="module")
def gemma():
    return pictures.build("gemma3")


def generate(model, given, new_tokens=6, **more):
    given = {**given, **more}
    return families.generate(model, given.pop("input_ids"), new_tokens, given.pop("attention_mask"), **given)


def close(found, expected, tolerance=1e-9):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def check_kept(model, given):
    before = generate(model, given)
    for schedule in ("", "1:1.0"):
        with lazyllm.enable(model, schedule) as lazy:
            after = generate(model, given)
        assert torch.equal(after.sequences, before.sequences)
        close(after.logits, before.logits, 1e-5)
        assert lazy.stats.prompt_computed == 1.0
    return before


def check_pruned(model, given, stages, new_tokens=6):
    """A pruned generation is one masked pass of the unmodified model over the recorded active sets."""
    with lazyllm.enable(model, lazyllm.PruningSchedule(stages), record_positions=True) as lazy:
        output = generate(model, given, new_tokens)
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    sequence, length = output.sequences[:, :-1], given["input_ids"].shape[1]
    more = {name: value for name, value in given.items() if name not in ("input_ids", "attention_mask")}
    if (kinds := more.get("mm_token_type_ids")) is not None:
        more["mm_token_type_ids"] = torch.nn.functional.pad(kinds, (0, sequence.shape[1] - length))
    oracle = replay.Replay(model, sequence, lazy.stats.positions, lazy.stats.computed, **more)
    model.set_attn_implementation(own)
    for step, logits in enumerate(output.logits):
        newest = length - 1 + step
        expected = oracle.logits[newest].float()
        torch.testing.assert_close(logits[0], expected, rtol=replay.TOLERANCE, atol=replay.TOLERANCE)
        for layer, keep in stages:
            active, survivors = lazy.stats.positions[step][layer], lazy.stats.positions[step][layer + 1]
            assert torch.equal(survivors, oracle.expected_survivors(layer, newest, active, keep))
    return lazy.stats


def test_a_picture_with_everything_kept_is_the_unmodified_models(qwen):
    given = pictures.seen()
    before = check_kept(qwen, given)
    # The picture matters, and so do its positions: a text of the same tokens is another.
    text = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"]}
    assert (generate(qwen, text).logits[0] - before.logits[0]).abs().max() > 0.1


def test_a_pruned_picture_is_a_masked_pass_of_the_unmodified_model(qwen):
    given = pictures.seen()
    stats = check_pruned(qwen, given, STAGES)
    assert stats.rows[1:, 2:].max() > 1, "nothing was revived"
    picture = set(given["mm_token_type_ids"][0].nonzero()[:, 0].tolist())
    revived = {token for step in stats.computed[1:] for token in step[2].tolist()}
    assert picture & revived, "no token of the picture was revived"


def test_text_alone_after_a_picture_is_as_ever(qwen):
    check_kept(qwen, pictures.seen())
    text = families.prompt(30).clamp(max=80)
    check_pruned(qwen, {"input_ids": text, "attention_mask": torch.ones_like(text)}, STAGES)


def test_a_batch_of_pictures_is_what_each_is_alone(qwen):
    one, other = pictures.seen(), pictures.seen(before=5, after=7, size=(4, 4))
    ids, mask = padded([given["input_ids"][0].tolist() for given in (one, other)])
    together = {
        "input_ids": ids,
        "attention_mask": mask,
        "mm_token_type_ids": (ids == 90).int(),
        "pixel_values": torch.cat([one["pixel_values"], other["pixel_values"]]),
        "image_grid_thw": torch.cat([one["image_grid_thw"], other["image_grid_thw"]]),
    }
    with lazyllm.enable(qwen, lazyllm.PruningSchedule(STAGES)):
        found = generate(qwen, together)
        for row, given in enumerate((one, other)):
            alone = generate(qwen, given)
            close([step[row, None] for step in found.logits], alone.logits, 1e-6)


def test_a_second_turn_goes_on_at_the_pictures_positions(qwen):
    def turns():
        first = generate(qwen, pictures.seen(), 3)
        whole = torch.cat([first.sequences, families.prompt(5).clamp(max=80)], dim=1)
        mask = torch.ones_like(whole)
        return families.generate(qwen, whole, 3, mask, past_key_values=first.past_key_values)

    expected = turns()
    with lazyllm.enable(qwen, ""):
        found = turns()
    close(found.logits, expected.logits, 1e-5)


def test_a_conversation_goes_on_where_its_own_pictures_are(qwen):
    def begin(given=None):
        return generate(qwen, pictures.seen() if given is None else given, 3)

    def go_on(first):
        whole = torch.cat([first.sequences, families.prompt(5).clamp(max=80)], dim=1)
        more = {"past_key_values": first.past_key_values}
        return families.generate(qwen, whole, 3, torch.ones_like(whole), **more).logits

    plain = families.prompt(20).clamp(max=80)
    text = {"input_ids": plain, "attention_mask": torch.ones_like(plain)}
    with lazyllm.enable(qwen, lazyllm.PruningSchedule(STAGES)):
        expected, apart = go_on(begin()), go_on(begin(text))
        scored = lazyllm.log_likelihood(qwen, plain, [5, 6, 7]).tokens
        one, other = begin(), begin(text)
        close(go_on(other), apart, 1e-6)
        close(go_on(one), expected, 1e-6)
        begin()
        close([lazyllm.log_likelihood(qwen, plain, [5, 6, 7]).tokens], [scored], 1e-5)
    # As it was before, whatever was seen meanwhile.
    before = lazyllm.log_likelihood(qwen, plain, [5, 6, 7]).tokens
    with lazyllm.enable(qwen, ""):
        begin()
    close([lazyllm.log_likelihood(qwen, plain, [5, 6, 7]).tokens], [before])


def test_a_chunk_may_end_within_a_picture():
    model = pictures.build("qwen2_vl")
    expected = generate(model, pictures.seen(), 3).logits
    with lazyllm.enable(model, ""):
        close(generate(model, pictures.seen(), 3, prefill_chunk_size=14).logits, expected, 1e-5)


def test_conversations_with_pictures_in_threads():
    model = pictures.build("qwen2_vl")
    plain = families.prompt(20).clamp(max=80)
    text = {"input_ids": plain, "attention_mask": torch.ones_like(plain)}

    def talk(seen):
        first = generate(model, pictures.seen() if seen else text, 2)
        whole = torch.cat([first.sequences, plain[:, :5]], dim=1)
        more = {"past_key_values": first.past_key_values}
        return torch.stack(families.generate(model, whole, 2, torch.ones_like(whole), **more).logits)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with lazyllm.enable(model, lazyllm.PruningSchedule(STAGES)), ThreadPoolExecutor(3) as pool:
            expected = {seen: talk(seen) for seen in (True, False)}
            asked = [True, False, True] * 4
            for seen, found in zip(asked, pool.map(talk, asked), strict=True):
                close([found], [expected[seen]], 1e-5)
    finally:
        sys.setswitchinterval(interval)


def test_a_text_is_scored_while_a_picture_is_generated_for():
    model, found = pictures.build("qwen2_vl"), []
    plain = families.prompt(20).clamp(max=80)

    class Scoring(LogitsProcessor):
        def __call__(self, ids, scores):
            found.append(lazyllm.log_likelihood(model, plain, [5, 6, 7]).tokens)
            return scores

    with lazyllm.enable(model, lazyllm.PruningSchedule(STAGES)):
        expected = generate(model, pictures.seen(), 3).logits
        score = lazyllm.log_likelihood(model, plain, [5, 6, 7]).tokens
        close(generate(model, pictures.seen(), 3, logits_processor=[Scoring()]).logits, expected, 1e-6)
    close(found, [score] * 3, 1e-5)


@pytest.mark.parametrize("kind", ["gemma3", "qwen2_vl"])
def test_a_batch_of_which_one_has_ended_goes_on(kind):
    """The decoder of a model of text and pictures is given embeddings, those of the token that ended it too."""
    model = pictures.build(kind)
    prompts = [families.prompt(length, seed=length)[0].clamp(max=80).tolist() for length in (9, 14)]
    new = families.prompt(4).clamp(max=80)
    asked = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    ids, mask = padded(prompts)
    with lazyllm.enable(model, "1:0.5"):
        end = int(model.generate(ids, attention_mask=mask, **asked).sequences[0, ids.shape[1] + 2])
    asked |= {"eos_token_id": end, "pad_token_id": 0, "output_logits": True}

    def answer(ids, mask, new):
        first = model.generate(ids, attention_mask=mask, **asked)
        ends = first.sequences[:, ids.shape[1] :] == end
        shown = (ends.cumsum(dim=1) - ends.int() == 0).int()
        whole, mask = torch.cat([first.sequences, new], dim=1), torch.cat([mask, shown, torch.ones_like(new)], dim=1)
        more = model.generate(whole, attention_mask=mask, past_key_values=first.past_key_values, **asked)
        return shown, torch.stack(more.logits[:2], dim=1)

    with lazyllm.enable(model, "1:0.5"):
        shown, found = answer(ids, mask, new.expand(2, -1))
        assert shown[0].tolist() == [1, 1, 1, 0, 0, 0][: shown.shape[1]]
        for row, prompt in enumerate(prompts):
            alone = torch.tensor([prompt])
            _, expected = answer(alone, torch.ones_like(alone), new)
            close([found[row]], [expected[0]], 1e-4)


def test_what_is_added_at_the_first_layers_needs_all_their_tokens():
    model, given = pictures.build("qwen3_vl"), pictures.seen()
    with lazyllm.enable(model, "0:0.5"):
        refuse("prune after layer 1 or later", lambda: generate(model, given))
        text = {"input_ids": families.prompt(20), "attention_mask": torch.ones(1, 20, dtype=torch.int64)}
        generate(model, text)
    check_pruned(model, given, [(1, 0.3)])


def test_positions_of_ones_own_are_refused(qwen):
    given = {name: pictures.seen()[name] for name in ("input_ids", "attention_mask")}
    own = torch.arange(29).clamp(max=20)
    four = torch.stack([own, *[torch.arange(29)] * 3])[:, None]
    with lazyllm.enable(qwen, ""):
        refuse("position_ids", lambda: qwen(**given, position_ids=four, logits_to_keep=1))


@pytest.mark.parametrize("kinds", [True, False])
def test_text_in_a_model_that_makes_its_decoders_masks(gemma, kinds):
    text = families.prompt(30).clamp(max=80)
    given = {"input_ids": text, "attention_mask": torch.ones_like(text)}
    if kinds:  # as its processor gives
        given["token_type_ids"] = torch.zeros_like(text)
    check_kept(gemma, given)
    stats = check_pruned(gemma, given, [(1, 0.5)])
    assert stats.rows[1:, 2:].max() > 1


@pytest.mark.parametrize("kinds", [True, False])
def test_a_batch_of_it_is_what_each_is_alone(gemma, kinds):
    texts = [families.prompt(length, seed=length).clamp(max=80)[0].tolist() for length in (30, 19, 1)]
    ids, mask = padded(texts)
    types = {"token_type_ids": torch.zeros_like(ids)} if kinds else {}
    with lazyllm.enable(gemma, "1:0.5"):
        found = families.generate(gemma, ids, 6, mask, **types)
        for row, text in enumerate(texts):
            alone = families.generate(gemma, torch.tensor([text]), 6)
            close([step[row, None] for step in found.logits], alone.logits, 1e-6)


def test_a_picture_whose_tokens_see_each_other_is_refused(gemma):
    given = pictures.looked_at()
    generate(gemma, given)
    with lazyllm.enable(gemma, "1:0.5"):
        refuse("see each other", lambda: generate(gemma, given))
        refuse("see each other", lambda: gemma(**given, logits_to_keep=1))
    # Without its types the unmodified model is plainly causal.
    del given["token_type_ids"]
    check_kept(gemma, given)


def test_a_picture_in_place_of_embeddings():
    model, given = pictures.build("llava"), pictures.looked_at(tokens=16)
    del given["token_type_ids"]
    before = check_kept(model, given)
    other = {**given, "pixel_values": -given["pixel_values"]}
    assert (generate(model, other).logits[0] - before.logits[0]).abs().max() > 0.1
    check_pruned(model, given, STAGES)


def test_a_prefix_that_sees_itself_is_refused():
    model, ids = pictures.build("paligemma"), families.prompt(12).clamp(max=80)
    types = torch.zeros_like(ids)
    with lazyllm.enable(model, "1:0.5"):
        refuse("see each other|position_ids", lambda: families.generate(model, ids, 2, token_type_ids=types))
        refuse("see each other", lambda: model(ids, token_type_ids=types, position_ids=None, logits_to_keep=1))
