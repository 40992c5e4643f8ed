"""How much the next token needs each token (paper, Eq. 1), and which of them go on."""

from typing import NamedTuple

import torch
from torch import Tensor


class Scores(NamedTuple):
    """How a layer makes probabilities of query times key: see `attention_on`."""

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None


def newest_row(
    query: Tensor,
    key: Tensor,
    present: Tensor | None,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Importance by Eq. 1, (n,): the newest token's attention probability on each token, mean over query heads.

    `present` says which of the keys take part; for the rest see `attention_on`.
    """
    return attention_on(key, query[:, :, -1:], present, scaling, softcap, sinks).mean(dim=(1, 2, 3))[0]


def attention_on(
    key: Tensor,
    query: Tensor,
    visible: Tensor | None,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention probability of a few queries on each key.

    Args:
        key: (1, kv_heads, n, head_dim).
        query: (1, heads, queries, head_dim).
        visible: which keys each query sees, bool (queries, n) or (n,); None means all of them.
        scaling: factor on the scores.
        softcap: where the model caps its scores, `softcap * tanh(score / softcap)`.
        sinks: where the model has attention sinks, each query head's logit of attending to no token, (heads,).

    Returns:
        (1, kv_heads, heads of a group, queries, n), in float32, or float64 for a float64 model. With sinks those of a
        query sum to less than 1.
    """
    return probabilities(query, key, visible, Scores(scaling, softcap, sinks), exact(query.dtype))


def exact(dtype: torch.dtype) -> torch.dtype:
    """In what a model of this dtype has its attention probabilities: float32, or float64 if it is that."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def probabilities(query: Tensor, key: Tensor, mask: Tensor | None, by: Scores, dtype: torch.dtype) -> Tensor:
    """As `attention_on`, of a batch, with scores in `dtype`; a mask is bool, or what is added to them."""
    batch, kv_heads, n, width = key.shape
    rows = query.shape[2]
    query = query.reshape(batch * kv_heads, -1, width)  # so that keys are not copied for each head that shares them
    scores = torch.bmm(query.to(dtype), key.to(dtype).flatten(0, 1).transpose(1, 2)) * by.scaling
    scores = scores.view(batch, kv_heads, -1, rows, n)
    if by.softcap is not None:
        scores = by.softcap * torch.tanh(scores / by.softcap)
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if by.sinks is None:
        return scores.softmax(dim=-1, dtype=exact(query.dtype))
    sinks = by.sinks.view(1, kv_heads, -1, 1, 1).to(dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]


def most_important(importance: Tensor, count: int) -> Tensor:
    """The `count` positions that go on: the newest, which is the last, and the most important of the others.

    Equally important tokens go on in order of position, the same on every device.

    Args:
        importance: (positions,), negative where a position takes no part.
        count: how many go on, at least 1, at most as many as take part.

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
