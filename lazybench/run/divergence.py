"""What a method does to the next tokens: its divergence from the unmodified model, along that model's own answer."""

from dataclasses import dataclass, replace

import torch

from lazybench.methods.base import Method, Output, answer
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt

TOKENS = 16
"""Tokens of the answer that are compared at most."""


@dataclass(frozen=True)
class Expected:
    """What the unmodified model answers."""

    tokens: list[int]  # ids of its answer's first tokens
    logits: torch.Tensor  # of every token at each of them, (tokens, vocabulary), float32, on the CPU


def expected(prompt: Prompt, decode: Decoder, tokens: int = TOKENS) -> Expected:
    """The unmodified model's answer to a prompt, at most so many tokens of it.

    Raises:
        RecordFailure: the model cannot hold the prompt, or its logits are not finite.
    """
    decode = replace(decode, max_new_tokens=min(decode.max_new_tokens, tokens), tracing=True)
    found = decode(prompt.ids)
    return Expected(found, decode.logits)


def divergence(
    method: Method, prompt: Prompt, decode: Decoder, expected: Expected, seed: int = 0
) -> tuple[torch.Tensor, Output]:
    """KL(unmodified || method) of the next token, in nats, at each token of the answer, float64 (tokens,).

    The method is given the prompt and then the unmodified model's answer token by token, whatever its own would be: so
    decoding and revival count, and a difference is counted where it arises.

    Returns:
        the divergences, and what the method made of the prompt.

    Raises:
        RecordFailure: the model cannot hold the prompt, or its logits are not finite.
    """
    decode = replace(decode, forced=expected.tokens, tracing=True)
    output = answer(method, prompt, decode, seed)
    unmodified, found = (logits.double().log_softmax(-1) for logits in (expected.logits, decode.logits))
    return (unmodified.exp() * (unmodified - found)).sum(-1).clamp(min=0), output
