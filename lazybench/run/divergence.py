"""Measure a method's divergence from the unmodified model in the next tokens, along that model's own answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lazybench.errors import RecordFailure
from lazybench.methods.base import Method, answer
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt


@dataclass(frozen=True)
class UnmodifiedAnswer:
    """The unmodified model's answer."""

    tokens: list[int]  # token ids
    logits: torch.Tensor | None  # of the first tokens, (tokens, vocabulary), float32, on the CPU; None unless asked for

    @property
    def reference(self) -> list[int] | None:
        """The tokens that have logits."""
        return None if self.logits is None else self.tokens[: len(self.logits)]


def unmodified_answer(prompt: Prompt, decode: Decoder, tokens: int) -> UnmodifiedAnswer:
    """Generate the unmodified model's answer to a prompt, at most `tokens` tokens of it.

    Raises:
        RecordFailure: the model cannot hold the prompt, or its logits are not finite.
    """
    decode = replace(decode, max_new_tokens=min(decode.max_new_tokens, tokens), tracing=True)
    answer_tokens = decode(prompt.ids)
    return UnmodifiedAnswer(answer_tokens, decode.logits)


def divergence(
    method: Method, prompt: Prompt, decode: Decoder, unmodified: UnmodifiedAnswer, seed: int = 0
) -> torch.Tensor:
    """Compute KL(unmodified || method) of the next token, in nats, at each token of the answer, float64 (tokens,).

    The method is forced along the unmodified model's answer token by token, so that decoding and revival count, and a
    difference counts at the token where it arises.

    Raises:
        RecordFailure: the model cannot hold the prompt, or its logits are not finite.
    """
    decode = replace(decode, forced=unmodified.reference, tracing=True)
    answer(method, prompt, decode, seed)
    return kl(unmodified.logits, decode.logits)


def kl(unmodified: torch.Tensor, pruned: torch.Tensor) -> torch.Tensor:
    """Return KL(unmodified || pruned) of each token, in nats, float64 (tokens,), from logits (tokens, vocabulary)."""
    unmodified, pruned = (logits.double().log_softmax(-1) for logits in (unmodified, pruned))
    return (unmodified.exp() * (unmodified - pruned)).sum(-1).clamp(min=0)


def averaged(by_seed: Sequence[torch.Tensor]) -> dict[str, float]:
    """Return `kl`, the mean over the tokens of an answer and over seeds, and `first_token_kl`, in nats.

    Raises:
        RecordFailure: they are not finite.
    """
    kls = torch.stack([*by_seed]).mean(0)
    if not kls.isfinite().all():
        raise RecordFailure("the divergence is not finite: the logits along the unmodified model's answer are not")
    return {"first_token_kl": float(kls[0]), "kl": float(kls.mean())}
