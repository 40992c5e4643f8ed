"""Requests in one `with`, in turn and at once, get what they get alone; and a `with` that ends while one runs."""

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import families
import pytest
import torch
from checks import PAD, STAGES, assert_refused, assert_same_stats, pad_left, random_ids
from marks import slow_but

import lazyllm

GENERATION = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD, "return_dict_in_generate": True}


@pytest.fixture
def lazy(model):
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        yield lazy


def batch(*lengths):
    ids, mask = pad_left([random_ids(length) for length in lengths])
    return {"inputs": ids, "attention_mask": mask}


REQUESTS = {
    "one": {"inputs": families.prompt(40), "max_new_tokens": 9},
    "other": {"inputs": families.prompt(31, seed=5), "max_new_tokens": 7},
    "batch": {**batch(12, 30, 1), "max_new_tokens": 6},
    "other batch": {**batch(25, 9), "max_new_tokens": 8},
    "chunks": {"inputs": families.prompt(35, seed=6), "prefill_chunk_size": 9, "max_new_tokens": 5},
}


def answer(model, name, **more):
    output = model.generate(**REQUESTS[name], **GENERATION, **more)
    return output.sequences.tolist(), output.past_key_values.sequences


def check(actual, expected):
    assert actual[0] == expected[0]
    for one, other in zip(actual[1], expected[1], strict=True):
        assert_same_stats(one, other)


@pytest.fixture(scope="module")
def alone(model):
    """What each request gets by itself, in a `with` of its own."""
    actual = {}
    for name in REQUESTS:
        with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
            actual[name] = answer(model, name)
            assert lazy.sequences[0] is actual[name][1][0]
    return actual


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_requests_in_threads(model, lazy, alone, switching, pool):
    names = [*REQUESTS] * 3
    for name, actual in zip(names, pool.map(lambda name: answer(model, name), names), strict=True):
        check(actual, alone[name])


def test_a_request_within_the_pass_of_another_and_between_its_passes(model, lazy, alone):
    """In the same thread, and in one that starts in a copy of the pass's context."""
    actual, between = [], []

    def within(*_):
        hook.remove()
        actual.append(answer(model, "batch"))
        run = contextvars.copy_context().run
        thread = threading.Thread(target=lambda: actual.append(run(answer, model, "other")))
        thread.start()
        thread.join()

    def after(ids, scores, **_):
        between.append(answer(model, "other batch"))
        return torch.zeros(len(ids), dtype=torch.bool)

    hook = model.model.layers[2].mlp.register_forward_hook(within)
    check(answer(model, "one", stopping_criteria=[after]), alone["one"])
    check(actual[0], alone["batch"])
    check(actual[1], alone["other"])
    for one in between:
        check(one, alone["other batch"])


# A `with` that ends while a generation runs.


@pytest.mark.parametrize("layer", slow_but((2,), range(5)))
@pytest.mark.parametrize("schedule", ["", STAGES], ids=str)
def test_a_pass_that_outlives_its_session_ends_in_an_error(model, ids, layer, schedule):
    """In prefill and in decoding; transformers' own error where sizes do not match."""
    for new_tokens in (1, 3):
        session, calls = lazyllm.enable(model, schedule), []

        def stop(*_, session=session, calls=calls, last=new_tokens):
            calls.append(1)
            if len(calls) == last:
                session.stop()

        hook = model.model.layers[layer].register_forward_pre_hook(stop)
        with session, pytest.raises((lazyllm.LazyLLMError, RuntimeError)):
            families.generate(model, ids, new_tokens)
        hook.remove()


def test_leaving_from_within_a_generation_ends_it(model, ids):
    session = lazyllm.enable(model, STAGES)

    def leave(input_ids, scores, **_):
        session.__exit__(None, None, None)
        return torch.tensor([False])

    with session:
        assert_refused("belongs to a generation", lambda: families.generate(model, ids, 4, stopping_criteria=[leave]))
    assert "generate" not in vars(model)
