"""The contract of a method: ranges of its settings, a prompt of one token, and what is refused."""

import math

import pytest
import torch
from peers import ask, generate, prompt_of
from support import METHOD_NAMES, byte_tokenizer, method_settings

from lazybench.errors import LazyBenchError
from lazybench.methods import Method, Output, build_method
from lazybench.methods.base import answer


def change_in_place(ids, decode):
    ids[0, 1:3] = 7
    return Output(decode([ids])[0], 1.0)


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        (lambda ids, decode: Output([5, 6], 1.0), "did not call decode"),
        (lambda ids, decode: Output((decode([ids]) and decode([ids]))[0], 1.0), "was called twice"),
        (lambda ids, decode: Output(decode(ids)[0], 1.0), r"was given ids of shape \(4,\): it expects"),
        (change_in_place, "changed prompt.ids in place"),
        (lambda ids, decode: Output(decode([ids])[0][:-1], 1.0), "returned other tokens than decode did"),
        (lambda ids, decode: Output(decode([ids])[0], 0), r"prompt_computed=\[0\]: it is a number above 0"),
        (lambda ids, decode: Output(decode([ids])[0], math.nan), r"prompt_computed=\[nan\]:"),
        (lambda ids, decode: Output(decode([ids])[0], 1.5), None),
    ],
)
def test_a_broken_contract_is_refused(model, answered, message):
    class Careless(Method):
        def generate(self, prompts, decode, seeds):
            return [answered(prompts[0].ids, decode)]

    decode = ask(model, prompt_of(torch.tensor([[9, 8, 7, 6]])), 2)
    if message is None:
        assert answer(Careless("careless"), decode)[0].prompt_computed == 1.5
        return
    with pytest.raises(LazyBenchError, match=message):
        answer(Careless("careless"), decode)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_prompt_of_one_token_is_answered(model, name):
    subject = build_method(method_settings(name))
    if name.startswith("prompt_compression"):
        pytest.skip("without a text there is nothing to compress")
    subject.prepare(model)
    prompt = prompt_of(torch.tensor([[9]]), byte_tokenizer())
    (output,) = answer(subject, ask(model, prompt, 6))
    assert output.tokens[0] == generate(model, prompt.ids, 1)[0]
    assert len(output.tokens) == 6


WRONG = {
    "keep": (0, 1.01, float("nan"), "half", True),
    "layer": (-1, 1.5, "x", "0%", "100%"),
    "protect": ("all", True),
    "ratio": (1, -0.1, "half"),
    "pooling": (0, 4, "x", 3.0),
    "scorer": ("", 3),
    "window_tokens": (0, "many"),
    "faithful_whitespace": ("yes",),
    "kernel": ("mean", 3),
    "unit": ("word",),
    "scope": ("text",),
    "windows": ("short",),
    "schedule": ("nonsense", "1:0", "2:0.5,1:0.5", "101%:0.5", ["1:0.5", 3]),
    "ranking": ("best", {"poolin": 3}, {"queries": 0}),
} | {count: (0, 1.5, "x") for count in ("repeats", "window")}


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_settings_out_of_range_are_refused(name):
    given = method_settings(name).keys() - {"_target_", "name"}
    assert given <= WRONG.keys()
    for setting in given | {"repeats"}:
        for value in WRONG[setting]:
            with pytest.raises((LazyBenchError), match=rf"method\.{setting}"):
                build_method(method_settings(name, **{setting: value}))
