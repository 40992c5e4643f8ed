"""The keys and values of the layers between two stages: their slots, and which tokens are active and computed there."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lazyllm.core.schedule import Stage

_PREFILL_ROOM = 128  # spare tokens of a new buffer
_DECODE_ROOM = 512  # spare tokens when a buffer grows later, so that decoding rarely reallocates


class GrowingTensor:
    """A buffer that grows along dimension `dim`; elements keep their index once written.

    Args:
        batch_size: size of the first dimension; None uses that of the tensors written.
        fill: value of elements not yet written; None leaves them uninitialised.
    """

    def __init__(self, dim: int, batch_size: int | None = None, fill: float | None = None) -> None:
        self.dim = dim
        self.length = 0  # elements written so far along `dim`
        self.nbytes = 0  # allocated, spare room included
        self.data: Tensor | None = None  # spare room included
        self._batch_size, self._fill = batch_size, fill

    def extend(self, length: int, like: Tensor) -> Tensor:
        """Make the buffer `length` long (never shorter) and return it; other sizes and dtype are those of `like`."""
        old = self.data
        if old is None or length > old.shape[self.dim]:
            shape = list(like.shape)
            shape[self.dim] = length + (_PREFILL_ROOM if old is None else _DECODE_ROOM)
            if self._batch_size is not None:
                shape[0] = self._batch_size
            # A tensor made in inference mode could not be written to outside of it, in a later step.
            with torch.inference_mode(False):
                self.data = like.new_empty(shape) if self._fill is None else like.new_full(shape, self._fill)
            self.nbytes = self.data.nbytes
            if old is not None:
                self.data.narrow(self.dim, 0, old.shape[self.dim]).copy_(old)
        self.length = max(self.length, length)
        return self.view

    @property
    def view(self) -> Tensor:
        """The elements written so far."""
        return self.data.narrow(self.dim, 0, self.length)


class Tokens(NamedTuple):
    """Tokens of a batch, packed: those of one sequence after the other, sorted in each."""

    positions: Tensor  # int64 (n,)
    counts: list[int]  # how many each sequence has
    batch_index: Tensor | None  # the sequence of each token, int64 (n,); None with one sequence

    @classmethod
    def pack(cls, positions: Tensor, counts: list[int]) -> "Tokens":
        if len(counts) == 1:
            return cls(positions, counts, None)
        batch_index = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        return cls(positions, counts, to_device(batch_index, positions.device))

    def to(self, device: torch.device) -> "Tokens":
        batch_index = None if self.batch_index is None else self.batch_index.to(device)
        return Tokens(self.positions.to(device), self.counts, batch_index)


class LayerGroup:
    """The layers between two stages, their keys and values, and the tokens cached, active and computed in them.

    All layers of a group see the same tokens, and a token's key and value have the same slot in all of them. New slots
    follow the used ones. Steps with ranking mask the slots of inactive tokens. A step without it first moves active
    tokens to the last slots, so that attention reads one slice. The first group computes every token when it
    first appears: there, slot = position. Lists have one entry for each sequence of the batch.

    With several devices, keys and values are on their layer's device, and the index tensors on that of the layer that
    is running.

    Args:
        index: 0 for the first group.
        layers: the decoder layers of the group.
        ranking_layers: those that a ranking may use: the last one, and earlier ones with full attention.
        stage: the stage that ends the group; None for the last group.
        moves: whether steps without ranking may follow steps with it, so that active keys are worth moving.
    """

    def __init__(
        self, index: int, layers: range, ranking_layers: list[int], stage: Stage | None, batch_size: int, moves: bool
    ) -> None:
        self.index, self.layers, self.ranking_layers, self.stage = index, layers, ranking_layers, stage
        self._moves = moves
        # Masked slots get weight 0, and 0 times an uninitialised value may be NaN.
        fill = None if batch_size == 1 else 0
        # By layer, (batch, kv_heads, slots, head_dim).
        self.keys = {layer: GrowingTensor(-2, batch_size, fill) for layer in layers}
        self.values = {layer: GrowingTensor(-2, batch_size, fill) for layer in layers}
        # Unused in the first group: slot of each position, int64 (batch, positions), -1 without a KV entry; position of
        # each slot, int64 (batch, slots).
        self.slots, self._positions = GrowingTensor(1, batch_size, -1), GrowingTensor(1, batch_size, 0)
        self.num_cached = [0] * batch_size  # slots in use, which is tokens with keys and values here
        self.end = 0  # the largest of them
        self.device: torch.device | None = None  # where the index tensors are
        # The survivors of the last ranking, sorted, int64 (n,), and how many tokens the sequence had then. Tokens that
        # came after it are active.
        self._kept: list[Tensor | None] = [None] * batch_size
        self._kept_tokens = [0] * batch_size
        # State of the current step:
        self.num_active: list[int] = []  # tokens in the active set
        self.active_mask: Tensor | None = None  # which slots from `first_key` on are active, bool (batch, n); None: all
        self.first_key = 0  # the first slot that attention reads
        self.is_prefill = True  # whether no sequence has keys and values of an earlier step
        self.queries: Tokens  # tokens computed
        self.num_queries = 0  # number of tokens computed
        self._query_slots: Tensor  # their slots, int64 (num_queries,)
        self._new_slots: tuple[int, int] | None = None  # the first of these and their number, if alike in all sequences
        # Sequence, old slot and new slot of each key to move before the next step without ranking.
        self._pending: tuple[Tensor | None, Tensor, Tensor] | None = None

    def start(self, new: Tokens) -> None:
        """Begin a step in the first group: compute all new tokens, with every token active."""
        self.device = new.positions.device
        self._append(new)
        self.num_active = self.num_cached

    def activate(self, survivors: list[Tensor], num_tokens: list[int]) -> None:
        """Make the survivors of a stage the active set; compute those without a KV entry: new ones, and revived ones.

        Args:
            survivors: sorted positions of each sequence, int64 (n,).
            num_tokens: tokens so far of each sequence.
        """
        self._kept, self._kept_tokens = survivors, num_tokens
        self.num_active = [len(positions) for positions in survivors]
        packed = survivors[0] if len(survivors) == 1 else torch.cat(survivors)
        active = Tokens.pack(packed, self.num_active)
        queries, early = self._without_entry(active)
        self._append(queries)
        self.first_key, self.active_mask, self._pending = 0, None, None
        if self.num_cached != self.num_active or len(set(self.num_cached)) > 1:
            slots = gather(self.slots.view, active.batch_index, active.positions)
            if active.batch_index is not None:
                slots = slots + active.batch_index * self.end
            self.active_mask = torch.zeros(len(survivors), self.end, dtype=torch.bool, device=slots.device)
            self.active_mask.view(-1).index_fill_(0, slots, True)
        if early is not None and early.shape[0]:
            inactive = self._last_slots().logical_and_(~self.active_mask)
            batch_index, others = torch.nonzero_static(inactive, size=early.shape[0]).unbind(1)
            batch_index = None if active.batch_index is None else batch_index.repeat(2)
            self._pending = batch_index, torch.cat([early, others]), torch.cat([others, early])

    def activate_newest(self, newest: Tokens) -> None:
        """Add each sequence's newest token to the active set, and compute it, in a decoding step without ranking."""
        self._move_active_last()
        self.num_active = [count + new for count, new in zip(self.num_active, newest.counts, strict=True)]
        self._append(newest.to(self.device))
        self.first_key = min(end - count for end, count in zip(self.num_cached, self.num_active, strict=True))
        is_ragged = any(self.first_key + count < self.end for count in self.num_active)
        self.active_mask = self._last_slots() if is_ragged else None

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values, (1, kv_heads, num_queries, ...), and return those to attend to.

        In prefill these are the new ones, later those of the slots from `first_key` on, (batch, kv_heads, n, ...).
        """
        if key.device != self.device:
            self.to(key.device)
        buffers = self.keys[layer].extend(self.end, key), self.values[layer].extend(self.end, value)
        for buffer, new in zip(buffers, (key, value), strict=True):
            if self._new_slots is None:
                buffer[self.queries.batch_index, :, self._query_slots] = new[0].transpose(0, 1)
                continue
            if self.queries.batch_index is not None:  # as many in each sequence
                new = new.view(new.shape[1], len(self.num_cached), -1, new.shape[3]).transpose(0, 1)
            buffer.narrow(2, *self._new_slots).copy_(new)
        if self.is_prefill:
            return key, value
        keys, values = buffers
        return (keys[:, :, self.first_key :], values[:, :, self.first_key :]) if self.first_key else (keys, values)

    def key_positions(self, index: int) -> Tensor:
        """Return the position of each key that attention reads, in order of slots, int64 (n_keys,)."""
        positions = self.batch_key_positions()
        return (positions[index] if self.index else positions)[: self.num_cached[index] - self.first_key]

    def batch_key_positions(self) -> Tensor:
        """Return `key_positions` of all sequences, int64 (batch, n) or, in the first group, (n,)."""
        if self.index == 0:
            return torch.arange(self.end, device=self.device)
        return self._positions.view[:, self.first_key :]

    def active_keys(self, index: int) -> Tensor | None:
        """Return which of the keys that attention reads are active, bool (n_keys,); None means all."""
        n_keys = self.num_cached[index] - self.first_key
        if self.active_mask is None or n_keys == self.num_active[index]:
            return None
        return self.active_mask[index, :n_keys]

    def query_positions(self, index: int) -> Tensor:
        """Return the sorted positions that a sequence computes in this step, int64 (n,)."""
        return self.queries.positions.split(self.queries.counts)[index]

    def active_positions(self, index: int, num_tokens: int) -> Tensor:
        """Return the sorted active positions of a sequence of `num_tokens`, int64 (n,)."""
        newer = torch.arange(self._kept_tokens[index], num_tokens, device=self.device)
        ranked = self._kept[index]
        return newer if ranked is None else torch.cat([ranked, newer])

    def uncomputed(self, index: int, num_tokens: int) -> Tensor:
        """Return which positions of a sequence have no KV entry here, bool (num_tokens,); not in the first group."""
        return self.slots.data[index, :num_tokens] < 0

    def to(self, device: torch.device) -> None:
        """Move the index tensors to the device of the layer that runs."""
        if device == self.device:
            return
        self.device = device
        for buffer in (self.slots, self._positions):
            if buffer.data is not None:
                buffer.data = buffer.data.to(device)
        for name in ("queries", "_query_slots", "active_mask"):
            if (part := getattr(self, name, None)) is not None:
                setattr(self, name, part.to(device))
        self._kept = [None if positions is None else positions.to(device) for positions in self._kept]

    def _append(self, tokens: Tokens) -> None:
        """Compute these tokens in this step, in the next free slots."""
        self.queries, self.num_queries, starts = tokens, sum(tokens.counts), self.num_cached
        self.is_prefill = not any(starts)
        self.num_cached = [start + count for start, count in zip(starts, tokens.counts, strict=True)]
        self.end, count = max(self.num_cached), tokens.counts[0]
        is_aligned = len(set(tokens.counts)) == len(set(self.num_cached)) == 1
        self._new_slots = (self.end - count, count) if is_aligned else None
        self._query_slots = tokens.positions
        if self.index:
            spans = [range(*span) for span in zip(starts, self.num_cached, strict=True)]
            self._query_slots = concat_ranges(spans, tokens.positions.device)
            position_of_slot = self._positions.extend(self.end, tokens.positions[None])
            scatter(self.slots.view, tokens.batch_index, tokens.positions, self._query_slots)
            scatter(position_of_slot, tokens.batch_index, self._query_slots, tokens.positions)

    def _without_entry(self, active: Tokens) -> tuple[Tokens, Tensor | None]:
        """Return the active tokens that have no KV entry here, and slots of active keys to be moved, int64 (n,).

        Those are slots before the last `num_active` of a sequence, sequence by sequence; None in prefill, where no
        token has an entry, or if keys are not moved. Read their number from the device, once for all sequences.
        """
        if not any(self.num_cached):
            return active, None
        batch_index, early = active.batch_index, None
        slots = gather(self.slots.view, batch_index, active.positions)
        is_missing = slots < 0
        if batch_index is None:
            counts = is_missing.sum()[None]
        else:
            counts = slots.new_zeros(len(active.counts)).index_add_(0, batch_index, is_missing.long())
        if self._moves:
            num_inactive = [n - count for n, count in zip(self.num_cached, active.counts, strict=True)]
            starts = counts + to_device(torch.tensor(num_inactive), slots.device)
            is_early = (slots < (starts if batch_index is None else starts[batch_index])).logical_and_(~is_missing)
            *num_missing, num_early = torch.cat([counts, is_early.sum()[None]]).tolist()
            early = slots.index_select(0, torch.nonzero_static(is_early, size=num_early)[:, 0])
        else:
            num_missing = counts.tolist()
        which = torch.nonzero_static(is_missing, size=sum(num_missing))[:, 0]
        batch_index = None if batch_index is None else batch_index.index_select(0, which)
        return Tokens(active.positions.index_select(0, which), num_missing, batch_index), early

    def _last_slots(self) -> Tensor:
        """Return which slots from `first_key` on are the last `num_active` of each sequence, bool (batch, n)."""
        ends = self.num_cached
        starts = [end - count for end, count in zip(ends, self.num_active, strict=True)]
        numbers = torch.arange(self.first_key, self.end, device=self.device)
        starts, ends = to_device(torch.tensor([starts, ends]), self.device)[..., None]
        return (numbers >= starts) & (numbers < ends)

    def _move_active_last(self) -> None:
        """Swap active keys into the last slots of their sequences."""
        if self._pending is None:
            return
        (batch_index, sources, targets), self._pending = self._pending, None
        positions = gather(self._positions.view, batch_index, sources)
        scatter(self._positions.view, batch_index, targets, positions)
        scatter(self.slots.view, batch_index, positions, targets)
        for buffer in (*self.keys.values(), *self.values.values()):
            if buffer.data is not None:
                by_slot = buffer.data.transpose(1, 2)
                scatter(by_slot, batch_index, targets, gather(by_slot, batch_index, sources))


def partition(stages: Sequence[Stage], windows: list[int | None], batch_size: int, moves: bool) -> list[LayerGroup]:
    """Cut the layers, with windows as in `Setup`, into groups at the stages, ignoring stages that keep everything."""
    groups, start = [], 0
    for index, stage in enumerate([*(stage for stage in stages if stage.keep < 1), None]):
        layers = range(start, len(windows) if stage is None else stage.layer + 1)
        ranking_layers = [layer for layer in layers if windows[layer] is None or layer == layers[-1]]
        groups.append(LayerGroup(index, layers, ranking_layers, stage, batch_size, moves))
        start = layers.stop
    return groups


def concat_ranges(ranges: list[range], device: torch.device) -> Tensor:
    """Return the concatenated ranges, int64."""
    if len(ranges) == 1:
        return torch.arange(ranges[0].start, ranges[0].stop, device=device)
    return to_device(torch.tensor([number for part in ranges for number in part], dtype=torch.int64), device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a small host tensor to `device` without blocking."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def gather(buffer: Tensor, batch_index: Tensor | None, positions: Tensor) -> Tensor:
    """Return `n` entries of a `(batch, length, ...)` buffer, (n, ...); `batch_index=None` means batch size 1."""
    positions = positions.to(buffer.device)
    if batch_index is None:
        return buffer[0].index_select(0, positions)
    return buffer[batch_index.to(buffer.device), positions]


def scatter(buffer: Tensor, batch_index: Tensor | None, positions: Tensor, values: Tensor) -> None:
    """Write `n` values, (n, ...), to a `(batch, length, ...)` buffer; `batch_index=None` means batch size 1."""
    positions, values = positions.to(buffer.device), values.to(buffer.device)
    if batch_index is None:
        buffer[0].index_copy_(0, positions, values)
    else:
        buffer[batch_index.to(buffer.device), positions] = values
