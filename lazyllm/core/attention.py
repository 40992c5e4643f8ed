"""Attention over active keys: which keys a query sees, masks, the padding of a batch, and kernels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lazyllm.core.importance import Scores, probabilities, probability_dtype
from lazyllm.core.kv_cache import LayerGroup, to_device
from lazyllm.core.sequence import Sequence

BLOCK_ELEMENTS = 1 << 24  # largest number of elements of the scores or mask of a block of queries
_WINDOW_QUERIES = 512  # smallest block of queries under a window: larger blocks than the window are mostly masked
_FUSED_QUERIES = 32  # queries per block of a CPU's fused attention

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
    """A window of positions that a layer sees, in place of a (queries, keys) mask."""

    visible: MaskFunction  # which keys a query sees
    size: int  # largest number of positions that a query sees


class LayerInputs(NamedTuple):
    """Inputs of a layer's attention, for all sequences."""

    layer: int  # the decoder layer
    module: nn.Module  # its attention module, an argument of the model's own kernel
    query: Tensor  # (1, heads, num_queries, head_dim)
    key: Tensor  # what `LayerGroup.update` returned, or computed from it token by token
    value: Tensor  # likewise
    window: WindowMask | None  # which positions the layer sees; None means all earlier ones
    scores: Scores  # how the layer makes scores


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer over one sequence, as a ranking observes it.

    In prefill, queries and keys are the layer's active tokens in order of position. In a later step the queries are
    those of the tokens computed in it, and the keys are in order of slots, inactive ones included: use `key_positions`,
    `active_mask` and `Ranking.by_position`.
    """

    layer: int  # the decoder layer
    query: Tensor  # (1, heads, num_queries, head_dim), the newest token's query last
    key: Tensor  # (1, kv_heads, n_keys, head_dim)
    value: Tensor  # (1, kv_heads, n_keys, value_dim)
    scores: Scores  # how the layer makes scores: scaling, soft cap, attention sinks
    window: WindowMask | None  # which positions the layer sees; None means all earlier ones
    sequence: Sequence
    group: LayerGroup  # the layers between two stages that the layer belongs to

    @property
    def key_positions(self) -> Tensor:
        """Position of each key, int64 (n_keys,)."""
        return self.group.key_positions(self.sequence.index)

    @property
    def query_positions(self) -> Tensor:
        """Position of each query, sorted, int64 (num_queries,)."""
        return self.group.query_positions(self.sequence.index)

    @property
    def active_mask(self) -> Tensor | None:
        """Which keys are active in this step, bool (n_keys,); None means all."""
        return self.group.active_keys(self.sequence.index)

    def probabilities(self, query: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Return the attention probability of a few queries on each key.

        Args:
            query: (1, heads, queries, head_dim); by default the newest token's.
            positions: their positions, int64 (queries,).

        Returns:
            (1, kv_heads, heads per kv_head, queries, n_keys), 0 for keys that a query does not see, in float32, or
            float64 for a float64 model. Under attention sinks those of a query sum to less than 1.
        """
        query = self.query[:, :, -1:] if query is None else query
        mask = self.active_mask
        if positions is not None or self.window is not None:
            keys = self.key_positions
            positions = keys.new_tensor([self.sequence.num_tokens - 1]) if positions is None else positions
            visible = (causal if self.window is None else self.window.visible)(0, 0, positions[:, None], keys)
            mask = visible if mask is None else visible & mask
        return probabilities(query, self.key, mask, self.scores, probability_dtype(query.dtype))


class GroupAttention:
    """Attention in the layers of a group during one step: each query attends to its own sequence's active keys.

    Queries are packed, (1, heads, num_queries, head_dim). Attention runs one sequence at a time in prefill, and later
    on all at once, padded to the same number of queries. `sequences` are those that have new tokens.
    """

    def __init__(self, kernel: Kernel, group: LayerGroup, sequences: list[Sequence]) -> None:
        self._kernel, self._group, self._sequences = kernel, group, sequences
        counts, self._batch_size = group.queries.counts, len(group.num_cached)
        self._max_queries, self._num_keys = max(counts), group.end - group.first_key
        self._has_equal_queries = len(set(counts)) == 1
        num_queries = group.num_queries
        # Expected queries, sequences and keys; in prefill keys are packed, too.
        packed, over_slots = (num_queries, 1, num_queries), (num_queries, self._batch_size, self._num_keys)
        self.shape = packed if group.is_prefill else over_slots
        self._masks: dict[tuple[Any, ...], Tensor | None] = {}
        # By device: the query of each padded position, and the inverse, int64.
        self._padding: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def attend(self, inputs: LayerInputs) -> Tensor:
        """Return the attention of a layer, (1, num_queries, heads, value_dim)."""
        _, module, query, key, value, window, scores = inputs
        is_plain = scores.sinks is None and (scores.softcap is None or not self._kernel.is_sdpa)  # the kernel can do it
        # In a batch a mask may be copied for each head.
        is_batch = self._batch_size > 1
        per_pair = self._batch_size * query.shape[1] if is_batch else elements_per_pair(query, scores)
        if not self._group.is_prefill and per_pair * self._max_queries * self._num_keys <= BLOCK_ELEMENTS:
            mask = self._mask(window, query, key.shape[1])
            padded = self._padded(query) if is_batch else query
            if mask is None and is_plain and not self._kernel.is_sdpa:
                output = self._fused(module, padded, key, value, scores)
            else:
                output = attend_masked(padded, key, value, mask, scores).transpose(1, 2).contiguous()
            return self._unpadded(output) if is_batch else output
        outputs = []
        for each in self.by_sequence(inputs):
            if self._group.is_prefill and each.window is None and is_plain:
                outputs.append(self._fused(module, each.query, each.key, each.value, scores))
            else:
                outputs.append(attend_in_blocks(each))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def by_sequence(self, inputs: LayerInputs) -> Iterator[LayerAttention]:
        """Yield the attention of each sequence with new tokens; a window of at least the whole sequence is None."""
        start, window = 0, inputs.window
        for sequence in self._sequences:
            index = sequence.index
            queries = slice(start, start + self._group.queries.counts[index])
            start = queries.stop
            own, keys = slice(index, index + 1), slice(self._group.num_cached[index] - self._group.first_key)
            if self._group.is_prefill:
                own, keys = slice(None), queries
            parts = inputs.query[:, :, queries], inputs.key[own, :, keys], inputs.value[own, :, keys]
            own_window = None if window is None or sequence.num_tokens <= window.size else window
            yield LayerAttention(inputs.layer, *parts, inputs.scores, own_window, sequence, self._group)

    def _fused(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Return the model's own attention, causal by index, (batch, queries, heads, value_dim)."""
        softcap = {} if scores.softcap is None else {"softcap": scores.softcap}
        return self._kernel.attend(module, query, key, value, None, dropout=0.0, scaling=scores.scaling, **softcap)

    def _mask(self, window: WindowMask | None, query: Tensor, kv_heads: int) -> Tensor | None:
        """Return the mask of all sequences for `attend_masked`; None if all queries see all keys.

        Layers of the group share it.
        """
        key = window, query.dtype, query.device, query.shape[1], kv_heads
        if key not in self._masks:
            group, active_mask = self._group, self._group.active_mask
            visible = None if active_mask is None else active_mask[:, None]
            # Only the newest tokens see all active keys.
            if window is not None or self._max_queries > 1 or (visible is None and len(set(group.num_cached)) > 1):
                queries = self._padded(group.queries.positions.view(1, 1, -1, 1))[:, 0]
                sees = causal if window is None else window.visible
                seen = sees(0, 0, queries, group.batch_key_positions().unsqueeze(-2))
                visible = seen if visible is None else seen.logical_and_(visible)
            self._masks[key] = (
                None if visible is None else additive_mask(visible, query.dtype, query.shape[1], kv_heads)
            )
        return self._masks[key]

    def _padded(self, packed: Tensor) -> Tensor:
        """Return (1, heads, queries, width) as (batch, heads, longest, width); padding repeats some query."""
        if not self._has_equal_queries:
            packed = packed.index_select(2, self._padding_on(packed.device)[0])
        heads, width = packed.shape[1], packed.shape[3]
        return packed.view(heads, self._batch_size, -1, width).transpose(0, 1)

    def _unpadded(self, padded: Tensor) -> Tensor:
        """Return (batch, longest, heads, width) as (1, queries, heads, width)."""
        flat = padded.flatten(0, 1)
        return flat[None] if self._has_equal_queries else flat.index_select(0, self._padding_on(flat.device)[1])[None]

    def _padding_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._padding:
            is_query = torch.arange(self._max_queries) < torch.tensor(self._group.queries.counts)[:, None]
            is_query = is_query.flatten()
            query_of = (is_query.cumsum(0) - 1).clamp_(min=0)
            self._padding[device] = to_device(query_of, device), to_device(is_query.nonzero()[:, 0], device)
        return self._padding[device]


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


def attend_in_blocks(attention: LayerAttention) -> Tensor:
    """Run `attend_masked` on blocks of one sequence's queries, so that no mask has all queries and all keys.

    Returns (1, queries, heads, value_dim), contiguous.
    """
    query, key, value, window = attention.query, attention.key, attention.value, attention.window
    query_positions, key_positions = attention.query_positions, attention.key_positions
    active_mask, scores = attention.active_mask, attention.scores
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
        sees = visible(0, 0, query_positions[block, None], key_positions[None, keys])
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

    Returns (batch, heads, queries, value_dim).
    """
    batch, heads, num_queries, head_dim = query.shape
    kv_heads = key.shape[1]
    if scores.softcap is not None or scores.sinks is not None:
        # Capped scores are small enough for the model's dtype; with sinks they may be large.
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
