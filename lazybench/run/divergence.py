"""Measure a method's divergence from the unmodified model in the next tokens, along that model's own answer."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lazybench.errors import RecordFailure
from lazybench.methods.base import Method, answer
from lazybench.methods.baseline import Baseline
from lazybench.model.decoding import Decoder, Question

UNMODIFIED = Baseline("baseline")


def unmodified_logits(model: PreTrainedModel, question: Question, tokens: int) -> tuple[list[int], Tensor]:
    """Return the first tokens of the unmodified model's answer, and their logits; `RecordFailure` if it has none.

    There are at most `tokens` of them. Logits are (tokens, vocabulary), float32, on the CPU.
    """
    stops = replace(question.stops, max_new_tokens=min(tokens, question.stops.max_new_tokens))
    decode = Decoder(model, [question._replace(stops=stops)], num_logits=tokens)
    (output,) = answer(UNMODIFIED, decode)
    return output.tokens, decode.logits[0]


def divergence(method: Method, model: PreTrainedModel, question: Question, logits: Tensor) -> Tensor:
    """Compute KL(unmodified || method) of the next token, in nats, at each token of `question.reference`.

    The method is forced along the unmodified model's answer token by token, so that decoding and revival count, and a
    difference counts at the token where it arises. `RecordFailure` if the method cannot answer.

    Args:
        question: with the first tokens of the unmodified model's answer as its reference.
        logits: the unmodified model's along the reference, (tokens, vocabulary).

    Returns:
        float64 (tokens,).
    """
    decode = Decoder(model, [question._replace(is_forced=True)], num_logits=len(question.reference))
    answer(method, decode)
    return kl(logits, decode.logits[0])


def kl(unmodified: Tensor, pruned: Tensor) -> Tensor:
    """Return KL(unmodified || pruned) of each token, in nats, float64 (tokens,), from logits (tokens, vocabulary)."""
    unmodified, pruned = (logits.double().log_softmax(-1) for logits in (unmodified, pruned))
    return (unmodified.exp() * (unmodified - pruned)).sum(-1).clamp(min=0)


def averaged(by_seed: Sequence[Tensor]) -> dict[str, float]:
    """Return `kl` in nats, the mean over tokens and seeds, and `first_token_kl`; `RecordFailure` if not finite."""
    kls = torch.stack([*by_seed]).mean(0)
    if not kls.isfinite().all():
        raise RecordFailure("the divergence is not finite: the logits along the unmodified model's answer are not")
    return {"first_token_kl": float(kls[0]), "kl": float(kls.mean())}
