"""Attention that causality by index cannot express: revived queries, windows, capped scores, sinks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lazyllm.core.importance import Scores, probabilities, probability_dtype

BLOCK_ELEMENTS = 1 << 24  # largest number of elements of the scores or mask of a block of queries
_WINDOW_QUERIES = 512  # smallest block of queries under a window: larger blocks than the window are mostly masked
_FUSED_QUERIES = 32  # queries that a CPU's fused attention takes at once

# (batch, head, query positions, key positions) -> which keys are visible, bool. It ignores batch and head.
MaskFunction = Callable[[Any, Any, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Kernel:
    """The model's own attention, causal by index."""

    name: str  # of the attention implementation in transformers
    attend: Callable[..., Tensor]  # its function, with the signature of transformers' attention interface
    is_sdpa: bool  # whether it is PyTorch's fused attention, which cannot cap scores, unlike FlashAttention


@dataclass(frozen=True)
class WindowMask:
    """A window or chunk of positions that a layer sees, in place of a (queries, keys) mask."""

    visible: MaskFunction  # which keys a query sees
    size: int  # largest number of positions that a query sees


def causal(batch: int, head: int, query: Tensor, key: Tensor) -> Tensor:
    """Return which positions a query sees without a window: its own and earlier ones."""
    return key <= query


def additive_mask(visible: Tensor, dtype: torch.dtype, heads: int, kv_heads: int) -> Tensor:
    """Return the mask that `attend_masked` adds to the scores: 0, or minus infinity for a key that is not visible.

    `visible` is bool (batch, queries, n). Returns (batch, copies, queries, n); `copies` is how many `attend_masked`
    reads on this device, so that layers share them.
    """
    batch, num_queries, n = visible.shape
    copies = kv_heads if batch > 1 else 1
    if visible.is_cpu:
        copies = heads // kv_heads if num_queries < _FUSED_QUERIES else 1
    mask = visible.new_full((batch, copies, num_queries, n), -torch.inf, dtype=dtype)
    return mask.masked_fill_(visible[:, None], 0)


def attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: tuple[Tensor, Tensor],
    active_mask: Tensor | None,
    window: WindowMask | None,
    scores: Scores,
) -> Tensor:
    """Run `attend_masked` on blocks of one sequence's queries, so that no mask has all queries and all keys.

    Args:
        query: (1, heads, queries, head_dim).
        key: (1, kv_heads, n, head_dim).
        value: (1, kv_heads, n, value_dim).
        positions: of the queries, int64 (queries,), sorted, and of the keys, int64 (n,), sorted in prefill.
        active_mask: which keys are active, bool (n,); None means all.
        window: which positions the layer sees; None means all earlier ones.
        scores: how the layer makes scores.

    Returns:
        (1, queries, heads, value_dim), contiguous.
    """
    heads, num_queries = query.shape[1:3]
    is_prefill = num_queries == key.shape[2]
    output = query.new_empty(1, num_queries, heads, value.shape[-1])
    size = max(1, BLOCK_ELEMENTS // (key.shape[2] * elements_per_pair(query, scores)))
    visible, reach = (causal, num_queries) if window is None else (window.visible, window.size)
    if is_prefill:
        size = min(size, max(reach, _WINDOW_QUERIES))
    for start in range(0, num_queries, size):
        block = slice(start, min(start + size, num_queries))
        # In prefill a block sees no key after it, and none before the window of its first token.
        keys = slice(max(0, start - reach), block.stop) if is_prefill else slice(None)
        sees = visible(0, 0, positions[0][block, None], positions[1][None, keys])
        if active_mask is not None:
            sees = sees & active_mask
        mask = additive_mask(sees[None], query.dtype, heads, key.shape[1])
        part = attend_masked(query[:, :, block], key[:, :, keys], value[:, :, keys], mask, scores)
        output[:, block] = part.transpose(1, 2)
    return output


def elements_per_pair(query: Tensor, scores: Scores) -> int:
    """Return how many elements attention materialises per (query, key): 1 for a fused kernel, heads for full scores."""
    is_fused = scores.softcap is None and scores.sinks is None and query.device.type in ("cpu", "cuda")
    return 1 if is_fused else query.shape[1]


def attend_masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
    """Return attention under a mask, without copying keys and values for the heads that share them.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, n, head_dim).
        value: (batch, kv_heads, n, value_dim).
        mask: made by `additive_mask` and added to the scores; None masks nothing.
        scores: how the layer makes scores.

    Returns:
        (batch, heads, queries, value_dim).
    """
    batch, heads, num_queries, head_dim = query.shape
    kv_heads = key.shape[1]
    if scores.softcap is not None or scores.sinks is not None:
        # Capped scores are small enough for the model's dtype; those next to sinks may be large.
        dtype = query.dtype if scores.sinks is None else probability_dtype(query.dtype)
        weights = probabilities(query, key, None if mask is None else mask[:, :1, None], scores, dtype)
        return torch.matmul(weights.to(query.dtype).flatten(2, 3), value).reshape(batch, heads, num_queries, -1)
    attend = nn.functional.scaled_dot_product_attention
    if mask is None or (query.is_cpu and num_queries >= _FUSED_QUERIES):
        return attend(query, key, value, mask, scale=scores.scaling, enable_gqa=True)
    # On a CPU, heads that share keys become queries of one head, which reads the keys once. Elsewhere no fused kernel
    # takes both a mask and shared heads: each kv head becomes a sequence of its own.
    if query.is_cpu:
        query = query.reshape(batch, kv_heads, -1, head_dim)
        mask = mask.reshape(batch, 1, -1, mask.shape[3])
    else:
        mask = mask.flatten(0, 1)[:, None]
        query = query.reshape(batch * kv_heads, -1, num_queries, head_dim)
        key, value = (part.flatten(0, 1)[:, None].expand(-1, heads // kv_heads, -1, -1) for part in (key, value))
    return attend(query, key, value, mask, scale=scores.scaling).reshape(batch, heads, num_queries, -1)
