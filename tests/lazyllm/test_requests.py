"""Several requests inside one `with`, one after the other, in turn and at once: each gets what it gets alone."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import families
import pytest
import torch
from batching import PAD, answers, padded, same
from refusals import refuse
from transformers import LogitsProcessorList, StoppingCriteriaList, TextIteratorStreamer

import lazyllm

STAGES = [(1, 0.6), (3, 0.5)]
ASKED = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD, "return_dict_in_generate": True}


@pytest.fixture
def lazy(model):
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        yield lazy


def text(length, seed):
    return families.prompt(length, seed=seed)[0].tolist()


def batch(*lengths):
    ids, mask = padded([text(length, length) for length in lengths])
    return {"inputs": ids, "attention_mask": mask}


REQUESTS = {
    "one": {"inputs": families.prompt(40), "max_new_tokens": 9},
    "other": {"inputs": families.prompt(31, seed=5), "max_new_tokens": 7},
    "batch": {**batch(12, 30, 1), "max_new_tokens": 6},
    "other batch": {**batch(25, 9), "max_new_tokens": 8},
    "chunks": {"inputs": families.prompt(35, seed=6), "prefill_chunk_size": 9, "max_new_tokens": 5},
    "guided": {
        "inputs": families.prompt(30, seed=7),
        "negative_prompt_ids": families.prompt(22, seed=8),
        "guidance_scale": 1.5,
        "max_new_tokens": 6,
    },
    "guided batch": {
        **batch(14, 20),
        "negative_prompt_ids": batch(17, 6)["inputs"],
        "negative_prompt_attention_mask": batch(17, 6)["attention_mask"],
        "guidance_scale": 1.5,
        "max_new_tokens": 6,
    },
}


def answer(model, name, **more):
    output = model.generate(**REQUESTS[name], **ASKED, **more)
    return output.sequences.tolist(), output.past_key_values.sequences


def check(found, expected):
    assert found[0] == expected[0]
    for one, other in zip(found[1], expected[1], strict=True):
        same(one, other)


@pytest.fixture(scope="module")
def alone(model):
    """What each request gets by itself, in a `with` of its own."""
    found = {}
    for name in REQUESTS:
        with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
            found[name] = answer(model, name)
            assert lazy.sequences[0] is found[name][1][0]
    return found


def test_requests_in_threads(model, lazy, alone):
    with ThreadPoolExecutor(4) as pool:
        names = [name for _ in range(3) for name in REQUESTS]
        for name, found in zip(names, pool.map(lambda name: answer(model, name), names), strict=True):
            check(found, alone[name])


def test_requests_of_an_event_loop(model, lazy, alone):
    """Its threads run in copies of the context."""

    async def serve():
        loop = asyncio.get_running_loop()
        own = [loop.run_in_executor(None, contextvars.copy_context().run, answer, model, name) for name in REQUESTS]
        return await asyncio.gather(*(asyncio.to_thread(answer, model, name) for name in REQUESTS), *own)

    for name, found in zip([*REQUESTS, *REQUESTS], asyncio.run(serve()), strict=True):
        check(found, alone[name])


def test_a_request_within_the_pass_of_another(model, lazy, alone):
    """In the same thread, and in one that starts in a copy of the pass's context."""
    found = []

    def another(*_):
        hook.remove()
        found.append(answer(model, "batch"))
        run = contextvars.copy_context().run
        thread = threading.Thread(target=lambda: found.append(run(answer, model, "other")))
        thread.start()
        thread.join()

    hook = model.model.layers[2].mlp.register_forward_hook(another)
    check(answer(model, "one"), alone["one"])
    check(found[0], alone["batch"])
    check(found[1], alone["other"])


def test_a_request_between_the_passes_of_another(model, lazy, alone):
    found = []

    def another(ids, scores, **_):
        found.append(answer(model, "other batch"))
        return torch.zeros(len(ids), dtype=torch.bool)

    check(answer(model, "batch", stopping_criteria=StoppingCriteriaList([another])), alone["batch"])
    for one in found:
        check(one, alone["other batch"])


def test_one_that_fails_leaves_the_others_alone(model, lazy, alone):
    barrier = threading.Barrier(3)

    def fail(ids, scores, **_):
        barrier.wait(60)
        if ids.shape[1] > 33:
            raise ZeroDivisionError
        return torch.tensor([False])

    def meet(ids, scores, **_):
        if ids.shape[1] <= 43 and len(ids) == 1:
            barrier.wait(60)
        return torch.zeros(len(ids), dtype=torch.bool)

    def beams():
        for _ in range(3):
            refuse("beam search", lambda: model.generate(families.prompt(20), num_beams=2))
            barrier.wait(60)

    with ThreadPoolExecutor(3) as pool:
        failing = pool.submit(answer, model, "other", stopping_criteria=StoppingCriteriaList([fail]))
        refused = pool.submit(beams)
        going = pool.submit(answer, model, "one", stopping_criteria=StoppingCriteriaList([meet]))
        check(going.result(), alone["one"])
        refused.result()
        with pytest.raises(ZeroDivisionError):
            failing.result()
    check(answer(model, "other"), alone["other"])


class Letters:
    """A tokenizer for which each token is a letter."""

    def decode(self, ids, **_):
        return "".join(chr(0x4E00 + token) for token in ids)  # ideographs, of which none waits for a space


def test_streams_are_read_in_another_thread(model, lazy, alone):
    names = ["one", "other"]
    streamers = [TextIteratorStreamer(Letters(), skip_prompt=True, timeout=60) for _ in names]
    with ThreadPoolExecutor(2) as pool:
        done = [
            pool.submit(answer, model, name, streamer=streamer) for name, streamer in zip(names, streamers, strict=True)
        ]
        # A token of each in turn, as far as both go.
        pieces = list(zip(*streamers, strict=False))
    for which, (name, one) in enumerate(zip(names, done, strict=True)):
        check(one.result(), alone[name])
        (tokens,), _ = alone[name]
        streamed = "".join(piece[which] for piece in pieces)
        assert streamed
        assert Letters().decode(tokens[REQUESTS[name]["inputs"].shape[1] :]).startswith(streamed)


def test_conversations_take_turns(model, lazy):
    """Three of them, one a batch, each turn after one of another."""
    begun = [batch(20), batch(33), batch(8, 15)]
    turns = [[text(length, seed) for length in (5, 1, 9)] for seed in (11, 12, 13)]

    def turn(state, new):
        ids, mask, cache = state
        count = len(ids)
        ids = torch.cat([ids, torch.tensor([new] * count)], dim=1)
        mask = torch.cat([mask, mask.new_ones(count, ids.shape[1] - mask.shape[1])], dim=1)
        going_on = {} if cache is None else {"past_key_values": cache}
        output = model.generate(ids, attention_mask=mask, max_new_tokens=4, **going_on, **ASKED)
        grown = torch.cat([mask, mask.new_ones(count, 4)], dim=1)
        return output.sequences, grown, output.past_key_values

    def whole(which):
        state = (begun[which]["inputs"], begun[which]["attention_mask"], None)
        for new in turns[which]:
            state = turn(state, new)
        return state

    def compare(states):
        for (ids, _, cache), (wanted, _, one) in zip(states, expected, strict=True):
            check((ids.tolist(), cache.sequences), (wanted.tolist(), one.sequences))

    expected = [whole(which) for which in range(3)]
    states = [(start["inputs"], start["attention_mask"], None) for start in begun]
    for place in range(3):
        states = [turn(state, turns[which][place]) for which, state in enumerate(states)]
    compare(states)
    with ThreadPoolExecutor(3) as pool:
        compare(list(pool.map(whole, range(3))))


def test_guidance_is_two_generations(model, lazy):
    """What it mixes is what each of its two prompts would have, pruned by itself."""
    asked = REQUESTS["guided"]
    found = model.generate(**asked, **ASKED, output_scores=True)
    assert lazy.stats is found.past_key_values.stats
    prompts, caches, expected = [asked["inputs"], asked["negative_prompt_ids"]], [None, None], []
    for step in range(6):
        likely = []
        for which in range(2):
            with torch.no_grad():
                output = model(prompts[which], past_key_values=caches[which], logits_to_keep=1)
            caches[which] = output.past_key_values
            likely.append(output.logits[:, -1].log_softmax(-1))
        scores = likely[1] + 1.5 * (likely[0] - likely[1])
        torch.testing.assert_close(found.scores[step], scores, rtol=1e-4, atol=1e-4)
        prompts = [scores.argmax(-1, keepdim=True)] * 2
        expected.append(int(prompts[0]))
    assert found.sequences[0, 30:].tolist() == expected
    same(found.past_key_values.stats, caches[0].stats)


def test_guidance_of_a_batch_goes_on_where_a_sequence_has_ended(model, lazy):
    texts, negative = [text(14, 14), text(20, 20)], [text(17, 17), text(6, 6)]
    asked = {**ASKED, "guidance_scale": 1.5, "max_new_tokens": 8}

    def guided(**more):
        found = []
        for prompt, other in zip(texts, negative, strict=True):
            ids = torch.tensor([prompt])
            output = model.generate(ids, negative_prompt_ids=torch.tensor([other]), **asked | more)
            found.append((output.sequences[0, len(prompt) :].tolist(), output.past_key_values.stats))
        return found

    free = [tokens for tokens, _ in guided()]
    end = next(token for token in free[0][2:5] if token not in free[1])
    expected = guided(eos_token_id=end)
    assert len(expected[0][0]) < len(expected[1][0])
    ids, mask = padded(texts)
    others, hidden = padded(negative)
    asked |= {"negative_prompt_ids": others, "negative_prompt_attention_mask": hidden, "eos_token_id": end}
    output = model.generate(ids, attention_mask=mask, **asked)
    found = answers(output.sequences, ids.shape[1], end)
    for tokens, stats, wanted in zip(found, output.past_key_values.sequences, expected, strict=True):
        assert tokens == wanted[0]
        same(stats, wanted[1])


def test_positions_of_ones_own_are_read_and_the_mask_is_generates(model, lazy):
    ids = torch.tensor([text(20, 1), text(20, 2)])
    asked = {"inputs": ids, "max_new_tokens": 8, **ASKED}
    free = model.generate(**asked).sequences
    asked["eos_token_id"] = int(free[0, 22])  # which ends the first one alone
    expected = model.generate(**asked)
    positions = torch.arange(20).expand(2, -1)
    found = model.generate(**asked, position_ids=positions)
    check(*((output.sequences.tolist(), output.past_key_values.sequences) for output in (found, expected)))
    assert [len(stats.rows) for stats in lazy.sequences] == [3, 8]
    refuse("position_ids are not", lambda: model.generate(**asked, position_ids=positions + 1))


def test_passes_of_ones_own_within_generate_are_read_like_any(model, lazy, ids):
    """A processor with a generation of its own: what its masks hide is seen, though `generate` makes its own masks."""
    other, caches = families.prompt(25, seed=9), []

    def passes(hides):
        state = {"cache": None, "mask": torch.ones(1, 25, dtype=torch.int64)}

        def process(input_ids, scores):
            new = other if state["cache"] is None else input_ids[:, -1:]
            if state["cache"] is not None:
                state["mask"] = torch.cat([state["mask"], torch.ones(1, 1, dtype=torch.int64)], dim=1)
                state["mask"][:, 3] = 0 if hides else 1
            output = model(new, attention_mask=state["mask"], past_key_values=state["cache"], logits_to_keep=1)
            state["cache"] = output.past_key_values
            caches.append(output.past_key_values)
            return scores + output.logits[:, -1].log_softmax(-1)

        return {"logits_processor": LogitsProcessorList([process]), "max_new_tokens": 4, **ASKED}

    answered = model.generate(ids, **passes(hides=False)).sequences[0, 40:-1]
    begun = model(other, logits_to_keep=1).past_key_values
    for token in answered:
        model(token[None, None], past_key_values=begun, logits_to_keep=1)
    same(caches[-1].stats, begun.stats)
    refuse("hides tokens that an earlier pass has computed", lambda: model.generate(ids, **passes(hides=True)))
