"""Attention probabilities, which rankings average to importance (paper, Eq. 1), and the most important tokens."""

from typing import NamedTuple

import torch
from torch import Tensor


class Scores(NamedTuple):
    """How a layer makes attention scores."""

    scaling: float  # factor of query times key
    softcap: float | None = None  # scores become softcap * tanh(score / softcap); None leaves them as they are
    sinks: Tensor | None = None  # attention sinks: one logit per query head, (heads,); None in models without


def probability_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of attention probabilities in a model of this dtype: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def probabilities(query: Tensor, key: Tensor, mask: Tensor | None, kind: Scores, dtype: torch.dtype) -> Tensor:
    """Return the attention probability of each query on each key.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, n, head_dim).
        mask: bool, which keys each query sees, or float, added to the scores; broadcasts to the result. None masks
            nothing.
        kind: how the layer makes scores.
        dtype: of the scores.

    Returns:
        (batch, kv_heads, heads per kv_head, queries, n), in `probability_dtype(query.dtype)`. With sinks the
        probabilities of a query sum to less than 1.
    """
    batch, kv_heads, n, head_dim = key.shape
    num_queries = query.shape[2]
    query = query.reshape(batch * kv_heads, -1, head_dim)  # so that keys are not copied for each head that shares them
    scores = torch.bmm(query.to(dtype), key.to(dtype).flatten(0, 1).transpose(1, 2)) * kind.scaling
    scores = scores.view(batch, kv_heads, -1, num_queries, n)
    if kind.softcap is not None:
        scores = kind.softcap * torch.tanh(scores / kind.softcap)
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if kind.sinks is None:
        return scores.softmax(dim=-1, dtype=probability_dtype(query.dtype))
    sinks = kind.sinks.view(1, kv_heads, -1, 1, 1).to(dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]


def most_important(importance: Tensor, count: int) -> Tensor:
    """Return the newest position, which is the last one, and the `count - 1` most important other positions.

    Equally important tokens are kept in order of position, the same on every device.

    Args:
        importance: (positions,), negative for inactive positions.
        count: how many to keep, at least 1, at most as many as are active.

    Returns:
        the positions, sorted, int64 (count,).
    """
    newest = importance.shape[0] - 1
    if importance.is_cpu and count > 1:
        # Sorting takes a CPU longer than attention does, and only ties need it.
        chosen = importance >= importance[:newest].kthvalue(newest + 2 - count).values
        chosen[newest] = True
        if len(positions := chosen.nonzero()[:, 0]) == count:
            return positions
    ranked = importance[:newest].sort(descending=True, stable=True).indices
    return torch.cat([ranked[: count - 1].sort().values, ranked.new_full((1,), newest)])
