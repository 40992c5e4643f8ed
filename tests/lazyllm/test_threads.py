"""Generations in several threads, and a `with` that is left while one is under way."""

from __future__ import annotations

import _thread
import threading

import families
import pytest
import torch
from refusals import refuse
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])


class Pausing(BaseStreamer):
    """Lets the main thread on after the first new token, and waits for it before the third."""

    def __init__(self):
        self.tokens = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._prompt_seen = False

    def put(self, value):
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.tokens.append(int(value))
        self.begun.set()
        if len(self.tokens) == 2:
            assert self.go_on.wait(60)

    def end(self):
        pass


def in_thread(work):
    """Start a thread; what it raises is in `failed`."""
    failed = []

    def guarded():
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread, failed


def test_leaving_waits_for_a_generation_in_another_thread(model, ids):
    with lazyllm.enable(model, STAGES):
        expected = families.generate(model, ids, 8).sequences[0, ids.shape[1] :].tolist()
    streamer = Pausing()
    with lazyllm.enable(model, STAGES):
        thread, failed = in_thread(lambda: families.generate(model, ids, 8, streamer=streamer))
        assert streamer.begun.wait(60)
        streamer.go_on.set()
    assert not failed
    assert streamer.tokens == expected
    thread.join()


def test_no_new_generation_begins_while_the_last_ones_are_waited_for(model, ids):
    streamer = Pausing()
    refused = []

    def late():
        while not refused:
            try:
                families.generate(model, ids, 1)
            except lazyllm.LazyLLMError as error:
                refused.append(str(error))
        streamer.go_on.set()

    with lazyllm.enable(model, STAGES):
        thread, failed = in_thread(lambda: families.generate(model, ids, 4, streamer=streamer))
        other, _ = in_thread(late)
        assert streamer.begun.wait(60)
    other.join()
    thread.join()
    assert not failed
    assert len(streamer.tokens) == 4
    assert "has ended" in refused[0]


def test_an_impatient_leaver_gets_the_model_back_and_the_generation_an_error(model, ids):
    plain = families.generate(model, ids, 4).sequences
    leaving = threading.Event()

    class Interrupt(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            if leaving.is_set():
                _thread.interrupt_main()
            return torch.tensor([False])

    streamer = Pausing()
    streamer.go_on.set()
    with pytest.raises(KeyboardInterrupt), lazyllm.enable(model, STAGES):  # noqa: PT012
        thread, failed = in_thread(
            lambda: families.generate(
                model, ids, 400, streamer=streamer, stopping_criteria=StoppingCriteriaList([Interrupt()])
            )
        )
        assert streamer.begun.wait(60)
        leaving.set()
    leaving.clear()
    thread.join()
    assert "forward" not in vars(model)
    if failed:  # else it was quicker
        assert isinstance(failed[0], lazyllm.LazyLLMError)
    assert torch.equal(families.generate(model, ids, 4).sequences, plain)


def test_leaving_from_within_a_generation_ends_it(model, ids):
    session = lazyllm.enable(model, STAGES)

    class Leave(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            session.__exit__(None, None, None)
            return torch.tensor([False])

    def call():
        with session:
            families.generate(model, ids, 4, stopping_criteria=StoppingCriteriaList([Leave()]))

    refuse("has ended|belongs to a generation", call)
    assert "generate" not in vars(model)


def test_two_requests_at_once_are_two_generations(model, ids):
    prompts = [ids, families.prompt(31, seed=5)]
    with lazyllm.enable(model, STAGES):
        expected = [families.generate(model, prompt, 12).sequences.tolist() for prompt in prompts]
        rows = []
        for prompt in prompts:
            rows.append(families.generate(model, prompt, 12).past_key_values.stats.rows.tolist())
        found = [[], []]

        def work(which):
            for _ in range(10):
                output = families.generate(model, prompts[which], 12)
                found[which].append((output.sequences.tolist(), output.past_key_values.stats.rows.tolist()))

        threads = [in_thread(lambda which=which: work(which)) for which in range(2)]
        for thread, failed in threads:
            thread.join()
            assert not failed
    for which in range(2):
        assert found[which] == [(expected[which], rows[which])] * 10


def test_a_thread_that_waits_for_what_comes_after_is_not_waited_for(model, ids, monkeypatch):
    monkeypatch.setattr("lazyllm.hf.patching.PATIENCE", 0.2)
    plain = families.generate(model, ids, 4).sequences
    streamer = Pausing()

    def call():
        with lazyllm.enable(model, STAGES):
            started.append(in_thread(lambda: families.generate(model, ids, 8, streamer=streamer)))
            assert streamer.begun.wait(60)

    started = []
    refuse("generate in another thread had not returned", call)
    assert torch.equal(families.generate(model, ids, 4).sequences, plain)
    streamer.go_on.set()
    thread, failed = started[0]
    thread.join()
    assert isinstance(failed[0], lazyllm.LazyLLMError)
    streamer = Pausing()
    with pytest.raises(ZeroDivisionError), lazyllm.enable(model, STAGES):  # noqa: PT012  (what went wrong first is said)
        started.append(in_thread(lambda: families.generate(model, ids, 8, streamer=streamer)))
        assert streamer.begun.wait(60)
        raise ZeroDivisionError
    streamer.go_on.set()
    started[1][0].join()
