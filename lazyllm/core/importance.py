"""How much the next token needs each token (paper, Eq. 1), and which of them go on."""

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
    batch, kv_heads, n, head_dim = key.shape
    queries = query.shape[2]
    rows = query.reshape(batch, kv_heads, -1, head_dim).to(exact)
    scores = torch.matmul(rows, key.to(exact).transpose(-1, -2)) * scaling
    scores = scores.view(batch, kv_heads, -1, queries, n)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if visible is not None:
        scores = torch.where(visible, scores, float("-inf"))
    return scores.softmax(dim=-1) if sinks is None else softmax_with(sinks.view(1, kv_heads, -1, 1), scores)


def softmax_with(sinks: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Probabilities of scores, (..., n), beside one more logit, `sinks` (...), which takes its part of the whole."""
    beside = sinks.to(scores.dtype).expand(scores.shape[:-1])[..., None]
    return torch.cat([scores, beside], dim=-1).softmax(dim=-1)[..., :-1]


def over_processes(importance: torch.Tensor, processes: ProcessGroup | None, how: str) -> torch.Tensor:
    """Importance over all the model's query heads, from that over each process's own; one all-reduce.

    Args:
        importance: (n,), the mean or the largest over the heads of this process, as many as each has.
        processes: those among which the model's heads are split; None means one process.
        how: `mean` or `max`.

    Returns:
        (n,), the same in all processes.
    """
    if processes is None:
        return importance
    importance = importance.clone()
    all_reduce(importance, ReduceOp.MAX if how == "max" else ReduceOp.SUM, processes)
    return importance if how == "max" else importance / processes.size()


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
    if importance.is_cpu and importance.dtype == torch.float32:
        # Sorting takes a CPU longer than attention does. The bits of a float that is not negative order as it does, so
        # a whole number of bits and position orders by both, and the smallest one that goes on tells all of them.
        bits = (importance + 0.0).view(torch.int32)  # a zero below zero becomes one
        order = torch.arange(newest, -1, -1).add(bits, alpha=1 << 32)
        order[newest] = torch.iinfo(torch.int64).max
        last = order.kthvalue(newest + 2 - count).values
        return torch.nonzero_static(order >= last, size=count)[:, 0]
    ranked = importance[:newest].sort(descending=True, stable=True).indices
    return torch.cat([ranked[: count - 1].sort().values, ranked.new_full((1,), newest)])
