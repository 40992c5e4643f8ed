"""Attention as a ranking needs it: how much the next token needs each token (paper, Eq. 1), and who goes on."""

from __future__ import annotations

import torch
from torch.distributed import ProcessGroup, ReduceOp, all_reduce


def newest_row(
    query: torch.Tensor,
    key: torch.Tensor,
    present: torch.Tensor | None,
    scaling: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Importance by Eq. 1, (n,): the newest token's attention probability on each token, mean over query heads.

    As printed, Eq. 1 can be read as a column of the attention matrix, which is useless under a causal mask;
    it is the newest token's row. `present` says which of the keys take part; for the rest see `attention_on`.
    """
    return attention_on(key, query[:, :, -1:], present, scaling, softcap, sinks).mean(dim=(1, 2, 3))[0]


def attention_on(
    key: torch.Tensor,
    query: torch.Tensor,
    visible: torch.Tensor | None,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
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
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, kv_heads, _, head_dim = key.shape
    queries = query.shape[2]
    rows = query.reshape(batch, kv_heads, -1, head_dim).to(exact)
    scores = torch.matmul(rows, key.to(exact).transpose(-1, -2)) * scaling
    scores = scores.view(batch, kv_heads, -1, queries, key.shape[2])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if visible is not None:
        scores.masked_fill_(~visible, float("-inf"))
    if sinks is None:
        return scores.softmax(dim=-1)
    return softmax_with(sinks.view(1, kv_heads, -1, 1), scores)


def softmax_with(sinks: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Probabilities of scores, (..., n), beside one more logit, `sinks` (...), which takes its part of the whole."""
    beside = sinks.to(scores.dtype).expand(scores.shape[:-1])[..., None]
    return torch.cat([scores, beside], dim=-1).softmax(dim=-1)[..., :-1]


def over_processes(importance: torch.Tensor, group: ProcessGroup | None, how: str) -> torch.Tensor:
    """Importance over all the model's query heads, from that over each process's own; one all-reduce.

    Args:
        importance: (n,), the mean or the largest over the heads of this process, as many as each has.
        group: the processes among which the model's heads are split; None means one process.
        how: `mean` or `max`.

    Returns:
        (n,), the same in all processes.
    """
    if group is None:
        return importance
    importance = importance.clone()
    all_reduce(importance, ReduceOp.MAX if how == "max" else ReduceOp.SUM, group)
    return importance if how == "max" else importance / group.size()


def most_important(importance: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` positions that go on: the newest, which is the last, and the most important of the others.

    Equally important tokens go on in order of position, the same on every device.

    Args:
        importance: (positions,), negative where a position takes no part.
        count: how many go on, at least 1, at most as many as take part.

    Returns:
        the positions, sorted, int64 (count,).
    """
    newest = importance.shape[0] - 1
    ranked = importance[:newest].sort(descending=True, stable=True).indices
    return torch.cat([ranked[: count - 1].sort().values, ranked.new_full((1,), newest)])
