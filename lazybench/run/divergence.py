"""Measure a method's divergence from the unmodified model in the next tokens, along that model's own answer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lazybench.errors import RecordFailure
from lazybench.methods.baseline import Baseline

UNMODIFIED = Baseline("baseline")


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
