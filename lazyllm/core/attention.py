"""Attention where plain causality by index does not say who sees whom: revived rows, windows, capped scores, sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from lazyllm.core.importance import softmax_with

# Query rows are taken in blocks so that no block's scores or mask have more elements than this.
_BLOCK_ELEMENTS = 1 << 24

# Says for a query's positions and a key's, which broadcast, who sees whom; the first two arguments are not used.
MaskFunction = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]


class Kernel(Protocol):
    """The model's own attention, causal by index.

    Attributes:
        is_sdpa: whether it is PyTorch's fused attention.
        caps_scores: whether the kernel itself can cap attention scores.
        ignores_softcap: whether the unmodified model runs without its cap.
    """

    is_sdpa: bool
    caps_scores: bool
    ignores_softcap: bool

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor: ...


@dataclass(frozen=True)
class WindowMask:
    """In place of a mask tensor, of rows by tokens: a layer sees a window or chunk of positions, not all earlier ones.

    `visible` says who sees whom, and `window` how many positions a token sees.
    """

    visible: MaskFunction
    window: int


def causal(batch: int, head: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Which positions a query sees without a window: its own and earlier ones."""
    return key <= query


def attend_in_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: tuple[torch.Tensor, torch.Tensor],
    present: torch.Tensor | None,
    visible: MaskFunction,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of many rows of one sequence, some rows at a time, so that no mask is rows by keys.

    Args:
        query, key, value: (1, heads, rows, head_dim), (1, kv_heads, n, head_dim), (1, kv_heads, n, value_dim).
        positions: the queries', int64 (rows,), sorted, and the keys', int64 (n,), sorted in prefilling.
        present: which of the keys take part, bool (n,); None means all of them.
        visible: says for positions (rows, 1) and (1, n) who sees whom, bool (rows, n).
        scaling, softcap, sinks: see `lazyllm.attention_on`.

    Returns:
        (1, rows, heads, value_dim), contiguous.
    """
    heads, rows = query.shape[1:3]
    prefilling = rows == key.shape[2]
    output = query.new_empty(query.shape[0], rows, heads, value.shape[-1])
    # Fused attention under a mask holds one mask for all heads on a CPU, and no scores.
    held = heads if softcap is not None or sinks is not None or query.device.type != "cpu" else 1
    size = max(1, _BLOCK_ELEMENTS // (key.shape[2] * held))
    for start in range(0, rows, size):
        block = slice(start, min(start + size, rows))
        # In prefilling, tokens behind the block are out of its sight.
        sight = slice(block.stop if prefilling else None)
        mask = visible(0, 0, positions[0][block, None], positions[1][None, sight])
        if present is not None:
            mask = mask & present
        part = query[:, :, block], key[:, :, sight], value[:, :, sight]
        output[:, block] = attend_masked(*part, additive(mask, query.dtype), scaling, softcap, sinks).transpose(1, 2)
    return output


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask, bool, as fused attention adds it to the scores: 0, and minus infinity where a key is not seen."""
    return visible.to(dtype).log_()


def attend_masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention under a mask; heads that share keys and values do not copy them.

    Args:
        query, key, value: (batch, heads, rows, head_dim), (batch, kv_heads, n, head_dim) and (..., value_dim).
        mask: what is added to the scores, (rows, n) or (batch, 1, rows, n); None means nothing.
        scaling, softcap, sinks: see `lazyllm.attention_on`.

    Returns:
        (batch, heads, rows, value_dim).
    """
    batch, heads, rows, width = query.shape
    kv_heads = key.shape[1]
    if softcap is None and sinks is None:
        if mask is None or query.is_cpu or heads == kv_heads:
            return nn.functional.scaled_dot_product_attention(
                query, key, value, mask, scale=scaling, enable_gqa=heads != kv_heads
            )
        # Elsewhere no fused kernel takes both a mask and shared heads. So each head of keys is a sequence of its own,
        # and its query heads all see the one that is there.
        query = query.reshape(batch * kv_heads, -1, rows, width)
        shared = heads // kv_heads
        key, value = (part.flatten(0, 1)[:, None].expand(-1, shared, -1, -1) for part in (key, value))
        if batch > 1:
            mask = mask.repeat_interleave(kv_heads, dim=0)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scaling)
        return attended.reshape(batch, heads, rows, -1)
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    # Capped scores are small; beside sinks there are models that count on exact ones.
    dtype = query.dtype if sinks is None else exact
    query = query.reshape(batch, kv_heads, -1, width)  # so that keys are not copied for each head that shares them
    scores = torch.matmul(query.to(dtype), key.to(dtype).transpose(-1, -2)) * scaling
    scores = scores.view(batch, kv_heads, -1, rows, key.shape[2])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask.view(-1, 1, 1, *mask.shape[-2:])
    if sinks is None:
        weights = scores.softmax(dim=-1, dtype=exact)
    else:
        weights = softmax_with(sinks.view(1, kv_heads, -1, 1), scores)
    return torch.matmul(weights.to(query.dtype).flatten(2, 3), value).reshape(batch, heads, rows, -1)


def fits_one_block(heads: int, rows: int, columns: int) -> bool:
    """Whether all scores of an attention are few enough to be held at once."""
    return heads * rows * columns <= _BLOCK_ELEMENTS
