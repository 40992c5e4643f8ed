"""The engine: forward passes over one or several sequences that rank, prune, revive and attend (paper, section 3.2)."""

from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from lazyllm.core.attention import (
    BLOCK_ELEMENTS,
    Kernel,
    WindowMask,
    additive_mask,
    attend_in_blocks,
    attend_masked,
    causal,
    elements_per_pair,
)
from lazyllm.core.errors import LazyLLMError, unsupported
from lazyllm.core.groups import GrowingTensor, LayerGroup, partition
from lazyllm.core.importance import Scores
from lazyllm.core.ranking import LayerAttention, Ranking, check_survivors
from lazyllm.core.schedule import PruningSchedule, nearest, rankable
from lazyllm.core.sequence import Sequence


@dataclass(frozen=True)
class Setup:
    """The settings that all generations of a session share."""

    schedule: PruningSchedule
    kernel: Kernel
    windows: list[int | None]  # how many positions each layer's cache holds in the unmodified model; None all, 0 none
    processes: ProcessGroup | None  # the processes among which the model's heads are split; None means one process
    ranking: Ranking  # copied for each sequence
    min_tokens: int  # prompts of fewer tokens are not pruned
    record_positions: bool  # whether `Stats` keep active and computed positions
    record_importance: bool  # whether `Stats` keep the importance in every layer of prefill


class Engine:
    """The forward passes of one generation, from the prompts of a batch to the last generated tokens.

    A pass is:

        engine.begin_step(...)  # every token so far is active in the first group of layers
        for layer, decoder_layer in enumerate(layers):
            if layer begins another group:
                hidden = engine.prune_and_gather(hidden)  # rank, prune, revive
            hidden = decoder_layer(hidden)  # calls `update`, then `attend`, where rankings observe
        engine.end_step()

    Hidden states are packed, (1, tokens, hidden): the tokens of all sequences, one after the other, without padding.
    Attention takes one sequence at a time in prefill, later all at once.

    The Aux Cache (paper, section 3.2) has one entry a token, (batch, positions, hidden) in the model's dtype. The
    active sets of a step are nested, so a token has KV entries in all layers up to some depth, and its output there is
    all that is needed to resume.

    On several devices the keys and values of a layer are where it runs, the Aux Cache is where the first stage is, and
    the index tensors of a group are where its current layer runs.

    Args:
        setup: the session's settings.
        batch_size: number of sequences.
        chunked_tokens: how many tokens of the prompts, padding included, come in chunks.
        is_short: whether the prompts are too short to be pruned.
    """

    def __init__(self, setup: Setup, batch_size: int, chunked_tokens: int, is_short: bool) -> None:
        self.setup, self.chunked_tokens = setup, chunked_tokens
        self.groups = partition(PruningSchedule() if is_short else setup.schedule, setup.windows, batch_size)
        self.group_of = [group for group in self.groups for _ in group.layers]  # of each layer
        self.sequences = [Sequence(self.groups, index, setup.record_positions) for index in range(batch_size)]
        setup.ranking.check()  # a setting may have changed since `enable`
        self.rankings = [deepcopy(setup.ranking) for _ in self.sequences]
        for ranking, sequence in zip(self.rankings, self.sequences, strict=True):
            ranking.sequence, ranking.processes = sequence, setup.processes
        self.revives = not setup.ranking.for_good  # whether pruned tokens may be computed in a later step
        # Masked slots get weight 0, and 0 times an uninitialised value may be NaN.
        fill = None if batch_size == 1 else 0
        self.keys = [GrowingTensor(-2, batch_size, fill) for _ in self.group_of]  # (batch, kv_heads, slots, head_dim)
        self.values = [GrowingTensor(-2, batch_size, fill) for _ in self.group_of]
        self.aux_cache = GrowingTensor(1, batch_size)
        self.is_prompt_whole = False  # whether the first pass, or `chunked_tokens`, has all tokens of the prompts
        # Of the current step:
        self.live: list[Sequence] = []  # sequences with new tokens
        self.max_tokens = 0  # positions of the longest sequence
        self.is_prefill = True  # whether no sequence has tokens of an earlier step
        self._is_plain_decode = False  # whether each live sequence has one new token, and no stage ranks
        # Of the current group, and of its layers on one device:
        self.group = self.groups[0]
        self.num_queries = self._max_queries = self._num_keys = 0
        self._shape = (0, 0, 0)  # queries, sequences and keys in attention
        self._has_equal_queries = True  # whether all sequences have the same number of queries
        # First slot of the new keys, and how many there are, where both are the same in each sequence.
        self._new_slots: tuple[int, int] | None = None
        self._observers: dict[int, list[Sequence]] = {}  # by layer: the sequences whose ranking observes it
        self._device: torch.device | None = None
        self._masks: dict[tuple[WindowMask | None, torch.dtype, int, int], Tensor | None] = {}
        self._padding: tuple[Tensor, Tensor] | None = None  # query of each padded position, and the inverse, int64

    def begin_step(self, num_new_tokens: list[int], positions: Tensor, is_chunk: bool) -> None:
        """Start a forward pass over new tokens, with every position active in the first group.

        Args:
            num_new_tokens: new tokens of each sequence.
            positions: positions of the new tokens, int64 (tokens,), one sequence after the other.
            is_chunk: whether the new tokens are a chunk of the prompts.
        """
        for sequence, count in zip(self.sequences, num_new_tokens, strict=True):
            if sequence.is_prefill:
                sequence.is_short = max(count, self.chunked_tokens) < self.setup.min_tokens
            sequence.begin_step(count, self.setup.ranking.every if self.revives else None)
            is_prompt = sequence.is_prefill or is_chunk or (count > 1 and not self.is_prompt_whole)
            if is_prompt and sequence.prompt_length == sequence.num_computed_tokens:
                sequence.prompt_length = sequence.num_tokens
        self.live = [sequence for sequence in self.sequences if sequence.num_new_tokens]
        self.is_prefill = all(sequence.is_prefill for sequence in self.sequences)
        self._is_plain_decode = max(num_new_tokens) == 1 and not any(sequence.ranks for sequence in self.live)
        first = self.groups[0]
        first.num_cached = [sequence.num_tokens for sequence in self.sequences]
        first.num_active, first.num_queries = first.num_cached.copy(), num_new_tokens
        first.query_positions = first.query_slots = positions
        first.batch_index, first.device = self._batch_index(num_new_tokens, positions.device), positions.device
        self.max_tokens = max(first.num_cached)
        for group in self.groups[1:]:
            group.slots.extend(self.max_tokens, positions[None] if group.slots.data is None else group.slots.data)
        self._begin_group(first)

    def end_step(self) -> None:
        """Mark the tokens of the finished forward pass as computed."""
        batch_size = len(self.sequences)
        if not self.revives:
            self.aux_cache = GrowingTensor(1, batch_size)  # nothing will resume from it
        pairs = zip(self.keys, self.values, strict=True)
        kv_bytes = [(key.nbytes + value.nbytes) // batch_size for key, value in pairs]
        for sequence in self.live:
            sequence.end_step(kv_bytes, self.aux_cache.nbytes // batch_size)

    def prune_and_gather(self, hidden: Tensor) -> Tensor:
        """Prune the output of the current group at its stage, and gather the inputs of the next group.

        Gather survivors that lack a KV entry in the next group from the Aux Cache: all of them in prefill; later the
        new and any revived tokens; only the newest in a decoding step without ranking.

        Args:
            hidden: output of the group's last layer for its queries, (1, num_queries, hidden).

        Returns:
            the hidden states that the next group computes, (1, num_queries, hidden).
        """
        group, following = self.group, self.groups[self.group.index + 1]
        following.to(group.device)
        if self._is_plain_decode:
            self._append_newest(following)
            return hidden
        following.active = [self._survivors(sequence) for sequence in self.sequences]
        following.num_active = [len(positions) for positions in following.active]
        following.ranked_tokens = [sequence.num_tokens for sequence in self.sequences]
        active = following.active[0] if len(self.sequences) == 1 else torch.cat(following.active)
        aux_cache = self.aux_cache.extend(self.max_tokens, hidden)
        _scatter(aux_cache, group.batch_index, group.query_positions, hidden[0])
        active_batch = self._batch_index(following.num_active, active.device)
        misplaced = self._set_queries(following, active, active_batch)
        self._assign_slots(following)
        following.first_key, following.active_mask, ends = 0, None, following.num_cached
        if ends != following.num_active or len(set(ends)) > 1:
            active_slots = _gather(following.slots.view, active_batch, active)
            if active_batch is not None:
                active_slots = active_slots + active_batch * max(ends)
            following.active_mask = torch.zeros(len(ends), max(ends), dtype=torch.bool, device=active.device)
            following.active_mask.view(-1).index_fill_(0, active_slots, True)
        following.moves = None
        if misplaced is not None and misplaced.shape[0]:
            inactive = self._last_slots(following).logical_and_(~following.active_mask)
            rows, others = torch.nonzero_static(inactive, size=misplaced.shape[0]).unbind(1)
            rows = None if active_batch is None else rows.repeat(2)
            following.moves = rows, torch.cat([misplaced, others]), torch.cat([others, misplaced])
        self._begin_group(following)
        return _gather(self.aux_cache.data, following.batch_index, following.query_positions).to(hidden.device)[None]

    def _survivors(self, sequence: Sequence) -> Tensor:
        """Return the positions that the stage of the current group keeps, sorted, int64 (k,) (paper, section 3.2).

        The stage keeps `max(1, ceil(keep * n))` of `n` active tokens, protected ones first, and never fewer than the
        protected ones.

        Raises:
            LazyLLMError: a checked ranking did not return such positions.
        """
        group, ranking = self.group, self.rankings[sequence.index]
        if not sequence.ranks:
            return sequence.active(self.groups[group.index + 1])  # those of the last step, and the new ones
        layer, num_active = group.layers[-1], group.num_active[sequence.index]
        count = num_active if sequence.is_short else group.stage.kept(num_active)
        # The protected tokens, and the newest one if it is not among them.
        num_protected = len(sequence.protected) + (0 <= sequence.last_protected < sequence.num_tokens - 1)
        if count < num_protected:
            sequence.stats.exceeded.add(layer)
            count = num_protected
        survivors = ranking.survivors(layer, count)
        if ranking.checked:
            check_survivors(ranking, survivors, layer)
            survivors = survivors.clone()  # the ranking may reuse its own tensor
            if num_protected:
                survivors = torch.cat([survivors, sequence.protected_on(survivors.device)]).unique()
        return survivors

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values, (1, kv_heads, num_queries, ...), and return those to attend to.

        In prefill these are the new ones, later those of the slots from `first_key` on, (batch, kv_heads, n, ...).
        """
        group = self.group
        if key.device != self._device:
            self._move_to_device(key.device)
        end = group.first_key + self._num_keys
        keys, values = self.keys[layer].extend(end, key), self.values[layer].extend(end, value)
        for buffer, new in ((keys, key), (values, value)):
            if self._new_slots is None:
                buffer[group.batch_index, :, group.query_slots] = new[0].transpose(0, 1)
            else:
                padded = new if len(self.sequences) == 1 else self._padded(new)
                buffer.narrow(2, *self._new_slots).copy_(padded)
        if self.is_prefill:
            return key, value
        return (keys[:, :, group.first_key :], values[:, :, group.first_key :]) if group.first_key else (keys, values)

    def attend(
        self,
        layer: int,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        window: WindowMask | None,
        scores: Scores,
    ) -> Tensor:
        """Return the attention of the queries, each over its own sequence's active tokens.

        Args:
            layer: the decoder layer.
            module: its attention module, an argument of the model's own kernel.
            query: (1, heads, num_queries, head_dim).
            key: what `update` returned, or computed from it token by token.
            value: likewise.
            window: which positions the layer sees; None means all earlier ones.
            scores: how the layer makes scores.

        Returns:
            (1, num_queries, heads, value_dim).

        Raises:
            LazyLLMError: the layer does not attend once, over its own cached keys, or cannot rank under its window.
        """
        group, kernel = self.group, self.setup.kernel
        if (query.shape[2], key.shape[0], key.shape[2]) != self._shape:
            raise unsupported(f"decoder layer {layer} does not attend once, over its own cached keys")
        if window is not None or self.setup.windows[layer] is not None:
            self._check_window(layer, window)
        records = self.setup.record_importance and any(sequence.is_prefill for sequence in self.live)
        if records or layer in self._observers:
            self._observe(layer, query, key, value, window, scores)
        is_plain = scores.sinks is None and (scores.softcap is None or not kernel.is_sdpa)  # as the kernel computes
        # In a batch a mask may be copied for each head.
        is_batch = len(self.sequences) > 1
        per_pair = len(self.sequences) * query.shape[1] if is_batch else elements_per_pair(query, scores)
        if not self.is_prefill and per_pair * self._max_queries * self._num_keys <= BLOCK_ELEMENTS:
            mask = self._mask(window, query.dtype, query.shape[1], key.shape[1])
            padded = self._padded(query) if is_batch else query
            if mask is None and is_plain and not kernel.is_sdpa:
                output = self._fused(module, padded, key, value, scores)
            else:
                output = attend_masked(padded, key, value, mask, scores).transpose(1, 2).contiguous()
            return self._unpadded(output) if is_batch else output
        outputs = []
        for sequence, own_query, own_key, own_value in self._by_sequence(query, key, value):
            limited = None if window is None or sequence.num_tokens <= window.size else window
            if self.is_prefill and limited is None and is_plain:
                outputs.append(self._fused(module, own_query, own_key, own_value, scores))
                continue
            positions = sequence.query_positions(group), sequence.key_positions(group)
            active_mask = sequence.active_mask(group)
            outputs.append(attend_in_blocks(own_query, own_key, own_value, positions, active_mask, limited, scores))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _fused(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Return the model's own attention, causal by index, (batch, queries, heads, value_dim)."""
        softcap = {} if scores.softcap is None else {"softcap": scores.softcap}
        return self.setup.kernel.attend(module, query, key, value, None, dropout=0.0, scaling=scores.scaling, **softcap)

    def _begin_group(self, group: LayerGroup) -> None:
        """Make `group`, whose tokens of this step are set, the current one."""
        self.group = group
        self.num_queries, self._max_queries = sum(group.num_queries), max(group.num_queries)
        self._num_keys = max(group.num_cached) - group.first_key
        self._has_equal_queries = len(set(group.num_queries)) == 1
        # In prefill keys are packed, too.
        over_slots = self.num_queries, len(self.sequences), self._num_keys
        self._shape = (self.num_queries, 1, self.num_queries) if self.is_prefill else over_slots
        is_aligned = self._has_equal_queries and len(set(group.num_cached)) == 1
        end = group.num_cached[0]
        self._new_slots = (end - group.num_queries[0], group.num_queries[0]) if is_aligned else None
        self._observers = {}
        for sequence in self.live if group.stage is not None else ():
            ranking = self.rankings[sequence.index]
            if sequence.is_prefill or not ranking.for_good:
                for layer in filter(ranking.wants, group.layers):
                    self._observers.setdefault(layer, []).append(sequence)
        self._device = None

    def _move_to_device(self, device: torch.device) -> None:
        """Move the tensors that the layers of the current group share to the device where one of them runs."""
        self.group.to(device)
        self._device = device
        self._masks = {}
        if not self._has_equal_queries:
            is_query = torch.arange(self._max_queries) < torch.tensor(self.group.num_queries)[:, None]
            is_query = is_query.flatten()
            query_of = (is_query.cumsum(0) - 1).clamp_(min=0)
            self._padding = to_device(query_of, device), to_device(is_query.nonzero()[:, 0], device)

    def _append_newest(self, group: LayerGroup) -> None:
        """Add each live sequence's newest token to a group's active set, in a decoding step without ranking."""
        first = self.groups[0]
        self._move_active_last(group)
        group.num_queries = first.num_queries
        group.num_active = [n + new for n, new in zip(group.num_active, first.num_queries, strict=True)]
        group.query_positions = first.query_positions.to(group.device)
        group.batch_index = None if first.batch_index is None else first.batch_index.to(group.device)
        self._assign_slots(group)
        ends = group.num_cached
        group.first_key = min(end - count for end, count in zip(ends, group.num_active, strict=True))
        group.active_mask = None
        if any(group.first_key + count < max(ends) for count in group.num_active):
            group.active_mask = self._last_slots(group)
        self._begin_group(group)

    def _set_queries(self, following: LayerGroup, active: Tensor, batch_index: Tensor | None) -> Tensor | None:
        """Set which tokens the next group computes: the active positions that have no slot there.

        Read their number from the device, once for all sequences. In prefill no position has a slot.

        Returns:
            slots of the active keys that are not among the last `num_active` of their sequence, int64 (n,), sequence by
            sequence; None in prefill, or if every decoding step ranks.
        """
        if self.is_prefill:
            following.query_positions, following.batch_index = active, batch_index
            following.num_queries = following.num_active.copy()
            return None
        slots = _gather(following.slots.view, batch_index, active)
        is_missing = slots < 0
        if batch_index is None:
            counts = is_missing.sum()[None]
        else:
            counts = active.new_zeros(len(self.sequences)).index_add_(0, batch_index, is_missing.long())
        if self.setup.ranking.every == 1:
            misplaced, following.num_queries = None, counts.tolist()
        else:
            num_inactive = [n - kept for n, kept in zip(following.num_cached, following.num_active, strict=True)]
            starts = counts + to_device(torch.tensor(num_inactive), active.device)
            is_early = (slots < (starts if batch_index is None else starts[batch_index])).logical_and_(~is_missing)
            *following.num_queries, num_early = torch.cat([counts, is_early.sum()[None]]).tolist()
            misplaced = slots.index_select(0, torch.nonzero_static(is_early, size=num_early)[:, 0])
        which = torch.nonzero_static(is_missing, size=sum(following.num_queries))[:, 0]
        following.query_positions = active.index_select(0, which)
        following.batch_index = None if batch_index is None else batch_index.index_select(0, which)
        return misplaced

    def _assign_slots(self, group: LayerGroup) -> None:
        """Give the tokens that a group computes in this step the slots after those in use."""
        starts = group.num_cached
        group.num_cached = [start + count for start, count in zip(starts, group.num_queries, strict=True)]
        spans = [range(*span) for span in zip(starts, group.num_cached, strict=True)]
        group.query_slots = concat_ranges(spans, group.query_positions.device)
        position_of_slot = group.positions.extend(max(group.num_cached), group.query_positions[None])
        _scatter(group.slots.view, group.batch_index, group.query_positions, group.query_slots)
        _scatter(position_of_slot, group.batch_index, group.query_slots, group.query_positions)

    def _last_slots(self, group: LayerGroup) -> Tensor:
        """Return which slots from `first_key` on are the last `num_active` of each sequence, bool (batch, n)."""
        ends = group.num_cached
        starts = [end - count for end, count in zip(ends, group.num_active, strict=True)]
        numbers = torch.arange(group.first_key, max(ends), device=group.device)
        starts, ends = to_device(torch.tensor([starts, ends]), group.device)[..., None]
        return (numbers >= starts) & (numbers < ends)

    def _move_active_last(self, group: LayerGroup) -> None:
        """Swap active keys into the last slots of their sequences."""
        if group.moves is None:
            return
        (batch_index, sources, targets), group.moves = group.moves, None
        positions = _gather(group.positions.view, batch_index, sources)
        _scatter(group.positions.view, batch_index, targets, positions)
        _scatter(group.slots.view, batch_index, positions, targets)
        for layer in group.layers:
            for buffer in (self.keys[layer], self.values[layer]):
                if buffer.data is not None:
                    by_slot = buffer.data.transpose(1, 2)
                    _scatter(by_slot, batch_index, targets, _gather(by_slot, batch_index, sources))

    def _observe(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: WindowMask | None, scores: Scores
    ) -> None:
        """Show a layer's attention to the rankings that want it, and record its importance if the session does."""
        # Rankings are exact even under autocast.
        device, observers = query.device.type, self._observers.get(layer, ())
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            for sequence, own_query, own_key, own_value in self._by_sequence(query, key, value):
                limited = None if window is None or sequence.num_tokens <= window.size else window.visible
                attention = LayerAttention(layer, own_query, own_key, own_value, scores, sequence, limited)
                ranking = self.rankings[sequence.index]
                if sequence.is_prefill and self.setup.record_importance:
                    importance = attention.probabilities().mean(dim=(1, 2, 3))[0]
                    sequence.stats.importance.append(ranking.over_processes(importance))
                if sequence in observers:
                    ranking.observe(attention)

    def _by_sequence(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> Iterator[tuple[Sequence, Tensor, Tensor, Tensor]]:
        """Yield each live sequence, and its own queries, keys and values, (1, heads, ..., head_dim)."""
        start = 0
        for sequence in self.live:
            index = sequence.index
            queries = slice(start, start + self.group.num_queries[index])
            start = queries.stop
            own, keys = slice(index, index + 1), slice(self.group.num_cached[index] - self.group.first_key)
            if self.is_prefill:
                own, keys = slice(None), queries
            yield sequence, query[:, :, queries], key[own, :, keys], value[own, :, keys]

    def _batch_index(self, counts: list[int], device: torch.device) -> Tensor | None:
        """Return the sequence of each token, int64 (tokens,), from how many each has; None with one sequence."""
        if len(counts) == 1:
            return None
        return to_device(torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)), device)

    def _padded(self, packed: Tensor) -> Tensor:
        """Return (1, heads, queries, width) as (batch, heads, longest, width); padding repeats some query."""
        if not self._has_equal_queries:
            packed = packed.index_select(2, self._padding[0])
        heads, width = packed.shape[1], packed.shape[3]
        return packed.view(heads, len(self.sequences), -1, width).transpose(0, 1)

    def _unpadded(self, padded: Tensor) -> Tensor:
        """Return (batch, longest, heads, width) as (1, queries, heads, width)."""
        flat = padded.flatten(0, 1)
        return flat[None] if self._has_equal_queries else flat.index_select(0, self._padding[1])[None]

    def _mask(self, window: WindowMask | None, dtype: torch.dtype, heads: int, kv_heads: int) -> Tensor | None:
        """Return the mask of the current group as `attend_masked` takes it; None where all queries see all keys."""
        key = window, dtype, heads, kv_heads
        if key not in self._masks:
            group = self.group
            visible = None if group.active_mask is None else group.active_mask[:, None]
            # The newest tokens alone see all active keys.
            if window is not None or self._max_queries > 1 or (visible is None and len(set(group.num_cached)) > 1):
                queries = self._padded(group.query_positions.view(1, 1, -1, 1))[:, 0]
                if group.index == 0:
                    keys = torch.arange(self._num_keys, device=group.device)
                else:
                    keys = group.positions.view[:, group.first_key :]
                sees = (causal if window is None else window.visible)(0, 0, queries, keys.unsqueeze(-2))
                visible = sees if visible is None else sees.logical_and_(visible)
            self._masks[key] = None if visible is None else additive_mask(visible, dtype, heads, kv_heads)
        return self._masks[key]

    def _check_window(self, layer: int, window: WindowMask | None) -> None:
        """Refuse a layer whose cache drops tokens that its mask shows, or that cannot see the tokens it ranks."""
        num_tokens, size = max(sequence.num_tokens for sequence in self.live), self.setup.windows[layer]
        if window is None and size is not None and num_tokens > size:
            wrong = f"the cache of layer {layer} drops all but {size} positions, which the layer's mask does not say"
            raise LazyLLMError(f"{wrong}: this architecture is supported up to {size} tokens of prompt and answer")
        # A ranking may also observe windowed layers before the stage's own. If all layers see a window, any may rank.
        ranks = layer == self.group.layers[-1] and layer in self._observers
        if window is not None and num_tokens > window.size and ranks and (full := rankable(self.setup.windows)):
            wrong = f"layer {layer} sees only a window of {window.size} of the {num_tokens} tokens"
            raise LazyLLMError(f"{wrong}, so it cannot rank them: put the stage after layer {nearest(full, layer)}")


def concat_ranges(ranges: list[range], device: torch.device) -> Tensor:
    """Return the numbers of some ranges, one range after the other, int64."""
    if len(ranges) == 1:
        return torch.arange(ranges[0].start, ranges[0].stop, device=device)
    return to_device(torch.tensor([number for part in ranges for number in part], dtype=torch.int64), device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a small host tensor to `device` without blocking."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def _gather(buffer: Tensor, batch_index: Tensor | None, positions: Tensor) -> Tensor:
    """Return `n` entries of a `(batch, length, ...)` buffer, (n, ...); `batch_index=None` means batch size 1."""
    positions = positions.to(buffer.device)
    if batch_index is None:
        return buffer[0].index_select(0, positions)
    return buffer[batch_index.to(buffer.device), positions]


def _scatter(buffer: Tensor, batch_index: Tensor | None, positions: Tensor, values: Tensor) -> None:
    """Write `n` values, (n, ...), to a `(batch, length, ...)` buffer; `batch_index=None` means batch size 1."""
    positions, values = positions.to(buffer.device), values.to(buffer.device)
    if batch_index is None:
        buffer[0].index_copy_(0, positions, values)
    else:
        buffer[batch_index.to(buffer.device), positions] = values
