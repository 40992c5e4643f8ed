"""Attention where plain causality by index does not say who sees whom: revived rows, windows, capped scores, sinks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lazyllm.core.importance import Scores, exact, probabilities

# Query rows are taken in blocks so that no block's scores or mask have more elements than this.
BLOCK_ELEMENTS = 1 << 24
# Under a window, blocks of more rows than it see much that is masked, and shorter ones than this cost calls.
_WINDOW_ROWS = 512
# A CPU's fused attention takes so many rows at once.
_FUSED_ROWS = 32

# Says for a query's positions and a key's, which broadcast, who sees whom; the first two arguments are not used.
MaskFunction = Callable[[Any, Any, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Kernel:
    """The model's own attention, causal by index."""

    name: str
    attend: Callable[..., Tensor]
    is_sdpa: bool  # whether it is PyTorch's fused attention, which cannot cap scores, and not FlashAttention, which can
    ignores_softcap: bool  # whether the unmodified model runs without its cap


@dataclass(frozen=True)
class WindowMask:
    """In place of a mask, of rows by tokens: a layer sees a window or chunk of positions, not all earlier ones."""

    visible: MaskFunction  # says who sees whom
    window: int  # how many positions a token sees


def causal(batch: int, head: int, query: Tensor, key: Tensor) -> Tensor:
    """Which positions a query sees without a window: its own and earlier ones."""
    return key <= query


def additive(visible: Tensor, dtype: torch.dtype, heads: int, kv_heads: int) -> Tensor:
    """A mask, bool (batch, rows, n), as `attend_masked` takes it: 0, and minus infinity where a key is not seen.

    Returns (batch, copies, rows, n): as many copies as one call reads, so that no layer has to make them.
    """
    batch, rows, keys = visible.shape
    copies = kv_heads if batch > 1 else 1
    if visible.is_cpu:
        copies = heads // kv_heads if rows < _FUSED_ROWS else 1
    mask = visible.new_full((batch, copies, rows, keys), -torch.inf, dtype=dtype)
    return mask.masked_fill_(visible[:, None], 0)


def attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: tuple[Tensor, Tensor],
    present: Tensor | None,
    window: WindowMask | None,
    scores: Scores,
) -> Tensor:
    """`attend_masked` for many rows of one sequence, some rows at a time, so that no mask is rows by keys.

    The queries' positions are int64 (rows,), sorted, the keys' int64 (n,), sorted in prefilling; `present` says which
    of the keys take part, bool (n,). Returns (1, rows, heads, value_dim), contiguous.
    """
    heads, rows = query.shape[1:3]
    prefilling = rows == key.shape[2]
    output = query.new_empty(1, rows, heads, value.shape[-1])
    size = max(1, BLOCK_ELEMENTS // (key.shape[2] * held(query, scores)))
    visible, reach = (causal, rows) if window is None else (window.visible, window.window)
    if prefilling:
        size = min(size, max(reach, _WINDOW_ROWS))
    for start in range(0, rows, size):
        block = slice(start, min(start + size, rows))
        # In prefilling, what is behind a block is out of its sight, and what is before its first token's window.
        sight = slice(max(0, start - reach), block.stop) if prefilling else slice(None)
        sees = visible(0, 0, positions[0][block, None], positions[1][None, sight])
        if present is not None:
            sees = sees & present
        part = query[:, :, block], key[:, :, sight], value[:, :, sight]
        mask = additive(sees[None], query.dtype, heads, key.shape[1])
        output[:, block] = attend_masked(*part, mask, scores).transpose(1, 2)
    return output


def held(query: Tensor, scores: Scores) -> int:
    """How many elements a row and key of one sequence take: of one mask where attention is fused, or of all scores."""
    fused = scores.softcap is None and scores.sinks is None and query.device.type in ("cpu", "cuda")
    return 1 if fused else query.shape[1]


def attend_masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
    """Attention, (batch, heads, rows, value_dim); heads that share keys and values do not copy them.

    Queries are (batch, heads, rows, head_dim), keys and values (batch, kv_heads, n, head_dim or value_dim). The mask is
    what `additive` makes, added to the scores; None means nothing.
    """
    batch, heads, rows, width = query.shape
    kv_heads = key.shape[1]
    if scores.softcap is not None or scores.sinks is not None:
        # Capped scores are small; beside sinks there are models that count on exact ones.
        dtype = query.dtype if scores.sinks is None else exact(query.dtype)
        weights = probabilities(query, key, None if mask is None else mask[:, :1, None], scores, dtype)
        return torch.matmul(weights.to(query.dtype).flatten(2, 3), value).reshape(batch, heads, rows, -1)
    attend = nn.functional.scaled_dot_product_attention
    if mask is None or (query.is_cpu and rows >= _FUSED_ROWS):
        return attend(query, key, value, mask, scale=scores.scaling, enable_gqa=True)
    # Under a mask, heads that share keys are on a CPU rows of one, which reads them once. Elsewhere no fused kernel
    # takes both: each head of keys is a sequence of its own, and its query heads all see the one that is there.
    if query.is_cpu:
        query = query.reshape(batch, kv_heads, -1, width)
        mask = mask.reshape(batch, 1, -1, mask.shape[3])
    else:
        mask = mask.flatten(0, 1)[:, None]
        query = query.reshape(batch * kv_heads, -1, rows, width)
        key, value = (part.flatten(0, 1)[:, None].expand(-1, heads // kv_heads, -1, -1) for part in (key, value))
    return attend(query, key, value, mask, scale=scores.scaling).reshape(batch, heads, rows, -1)
