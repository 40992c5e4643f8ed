"""The engine: passes over one or several sequences that score, keep, prune, revive, attend (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Parts
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from lazyllm.core.attention import WindowMask, additive, attend_in_blocks, attend_masked, causal, fits_one_block
from lazyllm.core.errors import LazyLLMError, unsupported
from lazyllm.core.importance import newest_row, over_processes
from lazyllm.core.sequence import Sequence, Setup
from lazyllm.core.state import GrowingTensor, LayerGroup, partition

# On a CPU, keys and values of the active tokens are copied together where so many times as many keys would be attended
# to in vain, by any row, as there are active ones.
_GATHER = 4


class Engine:
    """The steps from the prompts of one or several sequences to their last generated tokens.

    The rows of all sequences lie one after the other, (1, rows, hidden), in all that works token by token: there is no
    padding. In prefilling the sequences attend one after the other, later all at once.

    The Aux Cache (paper, section 3.2) is one slot a token, (count, positions, hidden) in the model's dtype: the active
    sets of a step are nested, so a token's keys and values always cover a prefix of the layers, and its output at the
    deepest layer it has reached is all that is needed to go on from there.

    On several devices the keys and values of a layer are where it runs, the Aux Cache where the first stage is, and a
    group's tensors where its layer under way, or the last one that ran, is.

    Attributes:
        sequences: all of them, in the order of the batch.
        groups: the layers between the stages, in order of depth.
        group_of: the group of each layer.
        group: the one of the layer that runs, or ran last.
        live: indexes of the sequences with tokens in the pass under way.
        prefilling: whether all of these begin with it.
        device: where the layer under way runs.
        keys, values: of each layer, (count, kv_heads, slots, head_dim).
        aux: the Aux Cache.
    """

    def __init__(self, setup: Setup, count: int) -> None:
        layers = len(setup.windows)
        self.setup = setup
        self.groups = partition(setup.schedule, layers, count)
        self.group_of = [group for group in self.groups for _ in group.layers]
        self.group = self.groups[0]
        self.sequences = [Sequence(self, index) for index in range(count)]
        self.live: list[int] = []
        self.prefilling = True
        self.device: torch.device | None = None
        # A slot that a shorter sequence has not written is masked, and yet its value is multiplied, by 0.
        fill = None if count == 1 else 0
        self.keys = [GrowingTensor(-2, count, fill) for _ in range(layers)]
        self.values = [GrowingTensor(-2, count, fill) for _ in range(layers)]
        self.aux = GrowingTensor(1, count)
        # Of the group under way: the slots that its rows' keys go to, the same in each sequence, or (owner, slot) of
        # each row; whether each sequence has as many rows; masks, by window; and where gathered keys lie in a tensor of
        # so many heads and so much room.
        self._slots: slice | tuple[torch.Tensor, torch.Tensor] = slice(0)
        self._equal = True
        self._padding: tuple[torch.Tensor, torch.Tensor] | None = None
        self._masks: dict[WindowMask | None, torch.Tensor | None] = {}
        self._index: dict[tuple[int, int], torch.Tensor] = {}

    @property
    def longest(self) -> int:
        """Number of positions of the longest sequence, the ones of the step under way included."""
        return max(sequence.total for sequence in self.sequences)

    def begin_step(self, new: list[int], rows: torch.Tensor | None) -> None:
        """Start a forward pass: every position takes part in the first group.

        Args:
            new: how many new tokens each sequence has in it.
            rows: their positions, int64 (rows,), sequence by sequence; None where there is one sequence.
        """
        for sequence, count in zip(self.sequences, new, strict=True):
            sequence.begin_step(count)
        self.live = [index for index, count in enumerate(new) if count]
        self.prefilling = all(self.sequences[index].prefilling for index in self.live)
        first = self.groups[0]
        first.n_cached = first.n_active = [sequence.total for sequence in self.sequences]
        first.n_rows, first.rows, first.active = new, rows, [None] * len(new)
        first.owners = None if rows is None else self._owners(new, rows.device)
        self._begin_group(first, rows)

    def end_step(self) -> None:
        """Count the tokens of the finished forward pass as seen."""
        count = len(self.sequences)
        kv_bytes = [(key.nbytes + value.nbytes) // count for key, value in zip(self.keys, self.values, strict=True)]
        for index in self.live:
            self.sequences[index].end_step(kv_bytes, self.aux.nbytes // count)

    def cross(self, hidden: torch.Tensor) -> torch.Tensor:
        """Cross the stage behind the group under way, with every sequence.

        What its ranking lets go on is active in the next group. What of that has no key and value there is computed
        now, from the Aux Cache: in prefilling all of it, later the newest token, and those that are revived.

        Args:
            hidden: (1, rows, hidden), the output of the group's last layer for the rows it computed.

        Returns:
            (1, rows, hidden), the hidden states of the next group's rows.
        """
        group, following = self.group, self.groups[self.group.index + 1]
        chosen = [self.sequences[index].survivors(group) for index in self.live]
        device = chosen[0].device
        following.to(device)
        self._keep(group, hidden)
        following.active = [None] * len(self.sequences)
        for index, active in zip(self.live, chosen, strict=True):
            following.active[index] = active
        following.n_active = [0 if active is None else len(active) for active in following.active]
        active = chosen[0] if len(chosen) == 1 else torch.cat(chosen)
        owners = self._owners(following.n_active, device)
        slots = following.slots.extend(self.longest, active[None])
        rows, following.owners, following.n_rows = self._without_key(following, slots, active, owners)
        ends = [cached + count for cached, count in zip(following.n_cached, following.n_rows, strict=True)]
        written = _ranges(following.n_cached, ends, device)
        following.rows, following.n_cached = rows, ends
        _put(slots, following.owners, rows, written)
        _put(following.positions.extend(max(ends), active[None]), following.owners, written, rows)
        following.gathered = following.present = None
        if following.n_cached != following.n_active or len(set(ends)) > 1:
            self._show_active(following, _take(slots, owners, active), owners)
        self._begin_group(following, written)
        at = self.aux.data.device
        of = following.owners if following.owners is None else following.owners.to(at)
        return _take(self.aux.data, of, rows.to(at)).to(hidden.device)[None]

    def update(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the rows' keys and values, (1, kv_heads, rows, ...).

        Returns:
            in prefilling what was given; else all of the layer's, or those of the active tokens, (count, kv_heads,
            keys, ...).
        """
        keys, values = self.keys[layer], self.values[layer]
        if key.device != self.device:
            self._move(key.device)
        if values.data is not None and values.data.dtype != value.dtype:
            raise LazyLLMError(
                f"the model computed in {values.data.dtype} before and in {value.dtype} now: keep its dtype, "
                "and autocast, the same from the prompt to the last token"
            )
        stored = keys.extend(self._width, key), values.extend(self._width, value)
        for tensor, piece in zip(stored, (key, value), strict=True):
            if isinstance(self._slots, slice):
                tensor[:, :, self._slots].copy_(self._padded(piece))
            else:
                owners, slots = self._slots
                tensor[owners, :, slots] = piece[0].transpose(0, 1)
        if self.prefilling:
            return key, value
        return stored if self.group.gathered is None else (self._gather(keys.data), self._gather(values.data))

    def attend(
        self,
        layer: int,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        window: WindowMask | None,
        scaling: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attention of the rows, each over its own sequence's active tokens, (1, rows, heads, value_dim).

        `query` is (1, heads, rows, head_dim); `key` and `value` are what `update` returned, or made of that token by
        token.
        """
        group, kernel = self.group, self.setup.kernel
        expected = (1, self._n_rows) if self.prefilling else (len(self.sequences), self._n_keys)
        if query.shape[2] != self._n_rows or (key.shape[0], key.shape[2]) != expected:
            raise unsupported(f"decoder layer {layer} does not attend once, over its own cached keys")
        if window is not None or self.setup.windows[layer] is not None:
            self._check_window(layer, window)
        capped = {} if softcap is None else {"softcap": softcap}
        if kernel.ignores_softcap:
            softcap = None
        self._observe(layer, query, key, value, scaling, softcap, sinks)
        if self.setup.record_importance and self.prefilling:
            for index, newest, its_keys, _ in self._parts(query, key, value):
                found = newest_row(newest, its_keys, None, scaling, softcap, sinks)
                self.sequences[index].stats.importance.append(over_processes(found, self.setup.processes, "mean"))
        plain = sinks is None and (softcap is None or kernel.caps_scores)
        heads = len(self.sequences) * query.shape[1]
        if not self.prefilling and fits_one_block(heads, self._longest_rows, self._n_keys):
            mask, query = self._mask(window, query.dtype), self._padded(query)
            if mask is None and plain and not kernel.is_sdpa:
                return self._unpadded(kernel(module, query, key, value, None, dropout=0.0, scaling=scaling, **capped))
            return self._unpadded(attend_masked(query, key, value, mask, scaling, softcap, sinks).transpose(1, 2))
        attended = []
        for index, *part in self._parts(query, key, value):
            sequence = self.sequences[index]
            seen = None if window is None or sequence.total <= window.window else window.visible
            if self.prefilling and seen is None and plain:
                attended.append(kernel(module, *part, None, dropout=0.0, scaling=scaling, **capped))
                continue
            positions = sequence.rows(group), sequence.key_positions(group)
            by = positions, sequence.present(group), seen or causal, scaling, softcap, sinks
            attended.append(attend_in_blocks(*part, *by))
        return attended[0] if len(attended) == 1 else torch.cat(attended, dim=1)

    def _begin_group(self, group: LayerGroup, slots: torch.Tensor | None) -> None:
        """Go on with a group, whose rows' keys go to these slots, int64 (rows,)."""
        self.group = group
        self._n_rows, self._longest_rows = sum(group.n_rows), max(group.n_rows)
        self._width, self._n_keys = max(group.n_cached), max(group.n_keys)
        self._equal = len(set(group.n_rows)) == 1
        together = self._equal and len(set(group.n_cached)) == 1
        width = group.n_cached[0]
        self._slots = slice(width - group.n_rows[0], width) if together else (group.owners, slots)
        self._index = {}
        self._padding = None
        self._masks = {}

    def _move(self, device: torch.device) -> None:
        """Have what the layer under way needs on its device."""
        self.device = device
        self.group.to(device)
        if isinstance(self._slots, tuple):
            self._slots = self._slots[0].to(device), self._slots[1].to(device)
        self._padding = None
        self._masks = {}

    def _keep(self, group: LayerGroup, hidden: torch.Tensor) -> None:
        """Write the rows' outputs, (1, rows, hidden), to the Aux Cache."""
        aux = self.aux.extend(self.longest, hidden)
        if group.rows is None:
            aux[:, self.sequences[0].seen :].copy_(hidden)
            return
        owners = None if group.owners is None else group.owners.to(aux.device)
        _put(aux, owners, group.rows.to(aux.device), hidden[0].to(aux.device))

    def _without_key(
        self, following: LayerGroup, slots: torch.Tensor, active: torch.Tensor, owners: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[int]]:
        """The active positions that have no key and value in the next group, their owners, and how many each has.

        How many there are is asked of the device only where it is not known: in prefilling nothing is stored yet, and
        without revival a step of one token computes that alone. It is asked once for all sequences.
        """
        if self.prefilling:
            return active, owners, following.n_active
        sequences = [self.sequences[index] for index in self.live]
        if not sequences[0].ranking.revives and all(sequence.new == 1 for sequence in sequences):
            if owners is None:
                return active[-1:], None, [1]
            counts = torch.tensor([count for count in following.n_active if count])
            last = (counts.cumsum(0) - 1).to(active.device)
            return active[last], owners[last], [min(count, 1) for count in following.n_active]
        fresh = _take(slots, owners, active) < 0
        if owners is None:
            rows = active[fresh]
            return rows, None, [rows.shape[0]]
        by_owner = torch.zeros(len(self.sequences), dtype=torch.int64, device=active.device)
        counts = by_owner.index_add_(0, owners, fresh.long()).tolist()
        which = torch.nonzero_static(fresh, size=sum(counts))[:, 0]
        return active.index_select(0, which), owners.index_select(0, which), counts

    def _observe(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> None:
        """Show a layer's queries, keys and values to the rankings that want them."""
        if not any(self.sequences[index].ranking.wants(layer) for index in self.live):
            return
        # The ranking is exact whatever the model computes in.
        device = query.device.type
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            for index, newest, keys, values in self._parts(query, key, value):
                sequence = self.sequences[index]
                if sequence.ranking.wants(layer):
                    sequence.values, sequence.sinks = values, sinks
                    sequence.ranking.observe(layer, newest, keys, scaling, softcap)
                    sequence.values = sequence.sinks = None

    def _parts(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Of each live sequence its index, and its own queries, keys and values, (1, heads, ..., head_dim)."""
        start = 0
        for index in self.live:
            rows = slice(start, start + self.group.n_rows[index])
            start = rows.stop
            if self.prefilling:
                yield index, query[:, :, rows], key[:, :, rows], value[:, :, rows]
            else:
                own, keys = slice(index, index + 1), slice(self.group.n_keys[index])
                yield index, query[:, :, rows], key[own, :, keys], value[own, :, keys]

    def _owners(self, counts: list[int], device: torch.device) -> torch.Tensor | None:
        """Which sequence each of so many tokens is of, int64 (tokens,); None where there is one sequence."""
        if len(counts) == 1:
            return None
        return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(device)

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        """(1, heads, rows, width) as (count, heads, longest, width); what a sequence lacks is of any row."""
        if len(self.sequences) == 1:
            return rows
        if not self._equal:
            rows = rows.index_select(2, self._places()[0])
        return rows[0].unflatten(1, (len(self.sequences), -1)).transpose(0, 1)

    def _unpadded(self, padded: torch.Tensor) -> torch.Tensor:
        """(count, longest, heads, width) as (1, rows, heads, width)."""
        if len(self.sequences) == 1:
            return padded
        flat = padded.flatten(0, 1)
        return flat[None] if self._equal else flat.index_select(0, self._places()[1])[None]

    def _places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Which row each place of the sequences at equal length holds, and at which place each row is, int64."""
        if self._padding is None:
            counts = torch.tensor(self.group.n_rows)
            within = torch.arange(int(counts.max()))
            rows = (counts.cumsum(0) - counts)[:, None] + within.minimum(counts[:, None] - 1).clamp(min=0)
            places = (within < counts[:, None]).flatten().nonzero()[:, 0]
            rows = rows.flatten().clamp(max=self._n_rows - 1)
            self._padding = rows.to(self.device), places.to(self.device)
        return self._padding

    def _mask(self, window: WindowMask | None, dtype: torch.dtype) -> torch.Tensor | None:
        """What attention adds to the scores in this group, (count, 1, longest, slots); None where all see all."""
        if window is not None and self.longest <= window.window:
            window = None
        if window not in self._masks:
            visible = self._visible(window)
            self._masks[window] = None if visible is None else additive(visible, dtype)[:, None]
        return self._masks[window]

    def _visible(self, window: WindowMask | None) -> torch.Tensor | None:
        """Which keys each row sees, bool (count, longest, slots); None where all see all."""
        group, present = self.group, self.group.present
        if window is None and self._longest_rows == 1:  # the newest tokens alone, which see whatever is there
            if present is not None:
                return present[:, None]
            if len(set(group.n_keys)) == 1:
                return None
        keys = self._key_positions(group)
        if len(self.sequences) == 1:
            rows = self.sequences[0].rows(group)[None]
        else:
            rows = group.rows if self._equal else group.rows.index_select(0, self._places()[0])
            rows = rows.view(len(self.sequences), -1)
        visible = (causal if window is None else window.visible)(0, 0, rows[:, :, None], keys[..., None, :])
        return visible if present is None else visible & present[:, None]

    def _key_positions(self, group: LayerGroup) -> torch.Tensor:
        """Position of each key that attention gets, int64 (keys,) or (count, keys)."""
        if group.index == 0:
            return torch.arange(self._n_keys, device=self.device)
        return group.positions.view if group.gathered is None else _side_by_side(group.active)

    def _show_active(self, following: LayerGroup, slots: torch.Tensor, owners: torch.Tensor | None) -> None:
        """Have attention see none but the active tokens, which lie in these slots, int64 (tokens,), of their owners."""
        most, width = max(following.n_active), max(following.n_cached)
        if slots.is_cpu and max(following.n_rows) * (width - most) > _GATHER * most:
            following.gathered = _side_by_side(slots.split(following.n_active))
            if len(set(following.n_active)) > 1:
                following.present = torch.arange(most) < torch.tensor(following.n_active)[:, None]
            return
        following.present = torch.zeros(len(following.n_active), width, dtype=torch.bool, device=slots.device)
        following.present.view(-1).index_fill_(0, slots if owners is None else slots + owners * width, True)

    def _gather(self, stored: torch.Tensor) -> torch.Tensor:
        """The active tokens' keys or values, (count, heads, most, width), of all, (count, heads, room, width)."""
        count, heads, room, width = stored.shape
        if (heads, room) not in self._index:
            begins = torch.arange(0, count * heads * room, room).view(count, heads, 1)
            self._index[heads, room] = (begins + self.group.gathered[:, None]).flatten()
        return stored.view(-1, width).index_select(0, self._index[heads, room]).view(count, heads, -1, width)

    def _check_window(self, layer: int, window: WindowMask | None) -> None:
        """Refuse a layer that drops tokens without saying so, or that cannot see the tokens it is to rank."""
        total, held = max(self.sequences[index].total for index in self.live), self.setup.windows[layer]
        if window is None and held is not None and total > held:
            raise LazyLLMError(
                f"the cache of layer {layer} drops all but {held} positions, which the layer's mask does not "
                f"say: this architecture is supported up to {held} tokens of prompt and answer"
            )
        if window is None or total <= window.window:
            return
        if not any(self.sequences[index].ranking.wants(layer) for index in self.live):
            return
        # No stage can follow the last layer.
        full = [other for other, reach in enumerate(self.setup.windows[:-1]) if reach is None]
        if not full:
            raise LazyLLMError(
                f"every layer that a stage can follow sees only a window of {window.window} tokens, so none can rank "
                f"{total} of them: prompt and answer must fit into {window.window} tokens"
            )
        raise LazyLLMError(
            f"layer {layer} sees only a window of {window.window} of the {total} tokens, so it cannot rank them: put "
            f"the stage after a layer with full attention, such as {full[len(full) // 2]}, and rank by that layer "
            "alone, as lazyllm.Importance() does"
        )


def _ranges(starts: list[int], ends: list[int], device: torch.device) -> torch.Tensor:
    """The numbers from each start to before its end, one range after the other, int64."""
    if len(starts) == 1:
        return torch.arange(starts[0], ends[0], device=device)
    return torch.cat([torch.arange(*span) for span in zip(starts, ends, strict=True)]).to(device)


def _side_by_side(parts: Parts[torch.Tensor | None]) -> torch.Tensor:
    """Whole numbers, (n,) of each sequence, as (count, longest); what a sequence lacks is 0."""
    if len(parts) == 1:
        return parts[0][None]
    none = torch.empty(0, dtype=torch.int64)
    return pad_sequence([none if part is None else part for part in parts], batch_first=True)


def _take(tensor: torch.Tensor, owners: torch.Tensor | None, places: torch.Tensor) -> torch.Tensor:
    """Entries (n, ...) of a tensor (count, length, ...) at these places of their owners; None is the only one."""
    return tensor[0].index_select(0, places) if owners is None else tensor[owners, places]


def _put(tensor: torch.Tensor, owners: torch.Tensor | None, places: torch.Tensor, values: torch.Tensor) -> None:
    """Write entries (n, ...) to a tensor (count, length, ...) at these places of their owners; None is the only one."""
    if owners is None:
        tensor[0].index_copy_(0, places, values)
    else:
        tensor[owners, places] = values
