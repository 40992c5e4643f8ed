"""The engine: passes over one or several sequences that score, keep, prune, revive, attend (paper, section 3.2)."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from lazyllm.core.attention import BLOCK_ELEMENTS, WindowMask, additive, attend_in_blocks, attend_masked, causal, held
from lazyllm.core.errors import LazyLLMError
from lazyllm.core.importance import Scores, newest_row
from lazyllm.core.schedule import PruningSchedule, nearest, rankable
from lazyllm.core.state import GrowingTensor, LayerGroup, Sequence, Setup, partition


class Engine:
    """The steps from the prompts of one or several sequences to their last generated tokens.

    The rows of all sequences lie one after the other, (1, rows, hidden), in all that works token by token: there is no
    padding. In prefilling the sequences attend one after the other, later all at once.

    The Aux Cache (paper, section 3.2) is one slot a token, (count, positions, hidden) in the model's dtype: the active
    sets of a step are nested, so a token's keys and values always cover a prefix of the layers, and its output at the
    deepest layer it has reached is all that is needed to go on from there.

    On several devices the keys and values of a layer are where it runs, the Aux Cache where the first stage is, and a
    group's tensors where its layer under way, or the last one that ran, is.

    `chunked` is how many tokens of the prompts come in chunks; those that are too `short` are not pruned.
    """

    def __init__(self, setup: Setup, count: int, chunked: int, short: bool) -> None:
        layers = len(setup.windows)
        self.setup, self.chunked = setup, chunked
        self.groups = partition(PruningSchedule() if short else setup.schedule, setup.windows, count)
        self.group_of = [group for group in self.groups for _ in group.layers]  # of each layer
        self.group = self.groups[0]  # the one of the layer that runs, or ran last
        self.sequences = [Sequence(self, index) for index in range(count)]  # in the order of the batch
        self.live: list[Sequence] = []  # those with tokens in the pass under way
        self.longest = 0  # positions of the longest sequence, the ones of the step under way included
        self.is_prompt_whole = False  # whether the first pass, or `chunked`, holds all tokens of the prompts
        self.prefilling = True  # whether all of the live ones begin with the pass
        # Of each layer, (count, kv_heads, slots, head_dim). A slot that a shorter sequence has not written is masked,
        # and yet its value is multiplied, by 0.
        fill = None if count == 1 else 0
        self.keys = [GrowingTensor(-2, count, fill) for _ in range(layers)]
        self.values = [GrowingTensor(-2, count, fill) for _ in range(layers)]
        self.aux = GrowingTensor(1, count)
        # What the layers of the group under way that run on one device have in common: see `_settle` and `_mask`.
        self._settled: torch.device | None = None
        self._masks: dict[tuple[WindowMask | None, int, int], Tensor | None] = {}

    def begin_step(self, new: list[int], rows: Tensor, chunk: bool) -> None:
        """Start a forward pass with so many new tokens of each sequence: every position takes part in the first group.

        `rows` are their positions, int64 (rows,), sequence by sequence. `chunk` says that they are of the prompts.
        """
        for sequence, count in zip(self.sequences, new, strict=True):
            if sequence.prefilling:
                sequence.short = max(count, self.chunked) < self.setup.min_tokens
            sequence.new = count
            more = chunk or (count > 1 and not self.is_prompt_whole)
            if sequence.prompt_length == sequence.seen and (sequence.prefilling or more):
                sequence.prompt_length = sequence.total
        self.live = [sequence for sequence in self.sequences if sequence.new]
        self.prefilling = all(sequence.prefilling for sequence in self.live)
        # Whether the newest tokens alone are computed in every layer, one of each live sequence.
        self._one_row_each = not (self.prefilling or self.sequences[0].revives) and max(new) == 1
        first = self.groups[0]
        first.n_cached = first.n_active = [sequence.total for sequence in self.sequences]
        first.n_rows, first.rows, first.row_slots, first.active = new, rows, rows, [None] * len(new)
        first.owners, first.device = self._owners(new, rows.device), rows.device
        self.longest = max(first.n_cached)
        self._begin_group(first)

    def end_step(self) -> None:
        """Count the tokens of the finished forward pass as seen."""
        count = len(self.sequences)
        if not self.sequences[0].revives:
            self.aux = GrowingTensor(1, count)  # nothing will go on from it
        kv_bytes = [(key.nbytes + value.nbytes) // count for key, value in zip(self.keys, self.values, strict=True)]
        for sequence in self.live:
            sequence.stats.add_step(sequence, kv_bytes, self.aux.nbytes // count)
            sequence.seen, sequence.new = sequence.total, 0

    def cross(self, hidden: Tensor) -> Tensor:
        """Cross the stage behind the group under way, with every sequence.

        What its ranking lets go on is active in the next group. What of that has no key and value there is computed
        now, from the Aux Cache: in prefilling all of it, later the newest token, and those that are revived. Given the
        output of the group's last layer for its rows, (1, rows, hidden), returns what the next group's rows go on from.
        """
        group, following = self.group, self.groups[self.group.index + 1]
        following.active = [each.survivors(group) if each.new else None for each in self.sequences]
        chosen = [active for active in following.active if active is not None]
        following.n_active = [0 if active is None else len(active) for active in following.active]
        active = chosen[0] if len(chosen) == 1 else torch.cat(chosen)
        following.to(active.device)
        if not self._one_row_each:
            _put(self.aux.extend(self.longest, hidden), group.owners, group.rows, hidden[0])
        owners = self._owners(following.n_active, active.device)
        slots = following.slots.extend(self.longest, active[None])
        rows, following.owners, following.n_rows = self._without_key(following, slots, active, owners)
        ends = [cached + count for cached, count in zip(following.n_cached, following.n_rows, strict=True)]
        spans = [range(*span) for span in zip(following.n_cached, ends, strict=True)]
        following.row_slots = joined(spans, active.device)
        following.rows, following.n_cached = rows, ends
        _put(slots, following.owners, rows, following.row_slots)
        _put(following.positions.extend(max(ends), active[None]), following.owners, following.row_slots, rows)
        following.present = None
        if following.n_cached != following.n_active or len(set(ends)) > 1:
            places, width = _take(slots, owners, active), max(ends)
            following.present = torch.zeros(len(ends), width, dtype=torch.bool, device=slots.device)
            following.present.view(-1).index_fill_(0, places if owners is None else places + owners * width, True)
        self._begin_group(following)
        return hidden if self._one_row_each else _take(self.aux.data, following.owners, rows).to(hidden.device)[None]

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the rows' keys and values, (1, kv_heads, rows, ...), and return those to attend to.

        In prefilling they are what was given, else the layer's, (count, kv_heads, slots, ...).
        """
        group = self.group
        if key.device != self._settled:
            self._settle(key.device)
        keys, values = self.keys[layer].extend(self._n_keys, key), self.values[layer].extend(self._n_keys, value)
        if self._slots is not None:
            keys[:, :, self._slots], values[:, :, self._slots] = self._padded(key), self._padded(value)
        else:
            for stored, piece in ((keys, key), (values, value)):
                stored[group.owners, :, group.row_slots] = piece[0].transpose(0, 1)
        return (key, value) if self.prefilling else (keys, values)

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
        """Attention of the rows, each over its own sequence's active tokens, (1, rows, heads, value_dim).

        `query` is (1, heads, rows, head_dim); `key` and `value` are what `update` returned, or made of that token by
        token.
        """
        group, kernel = self.group, self.setup.kernel
        if (query.shape[2], key.shape[0], key.shape[2]) != self._sizes:
            wrong = f"decoder layer {layer} does not attend once, over its own cached keys"
            raise LazyLLMError(f"{wrong}: this architecture is not supported")
        if window is not None or self.setup.windows[layer] is not None:
            self._check_window(layer, window)
        if scores.softcap is not None and kernel.ignores_softcap:
            scores = scores._replace(softcap=None)
        recorded = self.setup.record_importance and any(sequence.prefilling for sequence in self.live)
        if recorded or layer in self._observers:
            self._observe(layer, query, key, value, window, scores)
        plain = scores.sinks is None and (scores.softcap is None or not kernel.is_sdpa)
        count = len(self.sequences)  # of several, each head of keys has a mask of its own
        elements = (held(query, scores) if count == 1 else count * query.shape[1]) * self._longest_rows * self._n_keys
        if not self.prefilling and elements <= BLOCK_ELEMENTS:
            mask = self._mask(window, query.dtype, query.shape[1], key.shape[1])
            if mask is None and plain and not kernel.is_sdpa:
                return self._unpadded(self._fused(module, self._padded(query), key, value, scores))
            output = attend_masked(self._padded(query), key, value, mask, scores)
            return self._unpadded(output.transpose(1, 2).contiguous())
        attended = []
        for sequence, own, keys, values in self._parts(query, key, value):
            limited = None if window is None or sequence.total <= window.window else window
            if self.prefilling and limited is None and plain:
                attended.append(self._fused(module, own, keys, values, scores))
                continue
            positions, present = (sequence.rows(group), sequence.key_positions(group)), sequence.present(group)
            attended.append(attend_in_blocks(own, keys, values, positions, present, limited, scores))
        return attended[0] if len(attended) == 1 else torch.cat(attended, dim=1)

    def _fused(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """The model's own attention, causal by index, (batch, rows, heads, value_dim)."""
        softcap = {} if scores.softcap is None else {"softcap": scores.softcap}
        return self.setup.kernel.attend(module, query, key, value, None, dropout=0.0, scaling=scores.scaling, **softcap)

    def _begin_group(self, group: LayerGroup) -> None:
        """Go on with a group, of which `rows`, `n_cached` and what else a step sets is known."""
        self.group = group
        self._n_rows, self._longest_rows = sum(group.n_rows), max(group.n_rows)
        self._n_keys = max(group.n_cached)
        self._equal = len(set(group.n_rows)) == 1
        # Rows, sequences and keys in attention; in prefilling the sequences lie one after the other.
        several = len(self.sequences), self._n_keys
        self._sizes = (self._n_rows, 1, self._n_rows) if self.prefilling else (self._n_rows, *several)
        # Where the rows' keys go, if that is the same in each sequence.
        together = self._equal and len(set(group.n_cached)) == 1
        self._slots = slice(group.n_cached[0] - group.n_rows[0], group.n_cached[0]) if together else None
        self._observers: dict[int, list[Sequence]] = {}  # by layer: whose ranking wants it
        for sequence in self.live:
            ranks = sequence.prefilling or not sequence.ranking.for_good
            for layer in filter(sequence.ranking.wants, group.layers) if ranks else ():
                self._observers.setdefault(layer, []).append(sequence)
        self._settled = None

    def _settle(self, device: torch.device) -> None:
        """Have what the layers of the group under way have in common on the device where one of them runs."""
        self.group.to(device)
        self._settled = device
        self._masks = {}
        if not self._equal:
            taken = (torch.arange(self._longest_rows) < torch.tensor(self.group.n_rows)[:, None]).flatten()
            # Which row each place of the sequences at equal length holds, and at which place each row is, int64.
            padding = (taken.cumsum(0) - 1).clamp_(min=0), taken.nonzero()[:, 0]
            self._padding = placed(padding[0], device), placed(padding[1], device)

    def _without_key(
        self, following: LayerGroup, slots: Tensor, active: Tensor, owners: Tensor | None
    ) -> tuple[Tensor, Tensor | None, list[int]]:
        """The active positions that have no key and value in the next group, their owners, and how many each has.

        How many there are is asked of the device only where it is not known: in prefilling nothing is stored yet, and
        without revival a step of one token computes that alone. It is asked once for all sequences.
        """
        if self.prefilling:
            return active, owners, following.n_active
        if self._one_row_each:
            first = self.groups[0]
            owners = None if owners is None else first.owners.to(active.device)
            return first.rows.to(active.device), owners, first.n_rows
        fresh = _take(slots, owners, active) < 0
        if owners is None:
            rows = active[fresh]
            return rows, None, [rows.shape[0]]
        counts = active.new_zeros(len(self.sequences)).index_add_(0, owners, fresh.long()).tolist()
        which = torch.nonzero_static(fresh, size=sum(counts))[:, 0]
        return active.index_select(0, which), owners.index_select(0, which), counts

    def _observe(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: WindowMask | None, scores: Scores
    ) -> None:
        """Show a layer's queries, keys and values to the rankings that want them, and record what is asked for."""
        # The ranking is exact whatever the model computes in.
        device, wanting = query.device.type, self._observers.get(layer, ())
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            for sequence, newest, keys, values in self._parts(query, key, value):
                ranking = sequence.ranking
                ranking.values, ranking.sinks = values, scores.sinks
                sequence.window = None if window is None or sequence.total <= window.window else window.visible
                if sequence.prefilling and self.setup.record_importance:
                    attention = newest_row(newest, keys, ranking.seen(layer), *scores)
                    sequence.stats.importance.append(ranking.over_processes(attention))
                if sequence in wanting:
                    ranking.observe(layer, newest, keys, scores.scaling, scores.softcap)
                ranking.values = ranking.sinks = sequence.window = None

    def _parts(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[tuple[Sequence, Tensor, Tensor, Tensor]]:
        """Each live sequence, and its own queries, keys and values, (1, heads, ..., head_dim)."""
        start = 0
        for sequence in self.live:
            index = sequence.index
            rows = slice(start, start + self.group.n_rows[index])
            start = rows.stop
            own, keys = slice(index, index + 1), slice(self.group.n_cached[index])
            if self.prefilling:
                own, keys = slice(None), rows
            yield sequence, query[:, :, rows], key[own, :, keys], value[own, :, keys]

    def _owners(self, counts: list[int], device: torch.device) -> Tensor | None:
        """Which sequence each of so many tokens is of, int64 (tokens,); None where there is one sequence."""
        if len(counts) == 1:
            return None
        return placed(torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)), device)

    def _padded(self, rows: Tensor) -> Tensor:
        """(1, heads, rows, width) as (count, heads, longest, width); what a sequence lacks is of any row."""
        if len(self.sequences) == 1:
            return rows
        if not self._equal:
            rows = rows.index_select(2, self._padding[0])
        heads, width = rows.shape[1], rows.shape[3]
        return rows.view(heads, len(self.sequences), -1, width).transpose(0, 1)

    def _unpadded(self, padded: Tensor) -> Tensor:
        """(count, longest, heads, width) as (1, rows, heads, width)."""
        if len(self.sequences) == 1:
            return padded
        flat = padded.flatten(0, 1)
        return flat[None] if self._equal else flat.index_select(0, self._padding[1])[None]

    def _mask(self, window: WindowMask | None, dtype: torch.dtype, heads: int, kv_heads: int) -> Tensor | None:
        """What attention adds to the scores in this group, see `attend_masked`; None where all see all."""
        key = window, heads, kv_heads
        if key not in self._masks:
            group = self.group
            visible = None if group.present is None else group.present[:, None]
            # The newest tokens alone see whatever is there.
            if window is not None or self._longest_rows > 1 or (visible is None and len(set(group.n_cached)) > 1):
                rows = self._padded(group.rows.view(1, 1, -1, 1))[:, 0]
                keys = torch.arange(self._n_keys, device=group.device) if group.index == 0 else group.positions.view
                sees = (causal if window is None else window.visible)(0, 0, rows, keys.unsqueeze(-2))
                visible = sees if visible is None else sees.logical_and_(visible)
            self._masks[key] = None if visible is None else additive(visible, dtype, heads, kv_heads)
        return self._masks[key]

    def _check_window(self, layer: int, window: WindowMask | None) -> None:
        """Refuse a layer that drops tokens without saying so, or that cannot see the tokens it is to rank."""
        total, held = max(sequence.total for sequence in self.live), self.setup.windows[layer]
        if window is None and held is not None and total > held:
            raise LazyLLMError(
                f"the cache of layer {layer} drops all but {held} positions, which the layer's mask does not "
                f"say: this architecture is supported up to {held} tokens of prompt and answer"
            )
        # A ranking may look at other layers besides the stage's own, which is to see all.
        ends = layer == self.group.layers[-1] and layer in self._observers
        if window is None or total <= window.window or not ends:
            return
        # Where all see a window, what is out of it matters least.
        if full := rankable(self.setup.windows):
            seen = f"layer {layer} sees only a window of {window.window} of the {total} tokens, so it cannot rank them"
            raise LazyLLMError(f"{seen}: put the stage after layer {nearest(full, layer)}")


def joined(ranges: list[range], device: torch.device) -> Tensor:
    """The numbers of some ranges, one range after the other, int64."""
    if len(ranges) == 1:
        return torch.arange(ranges[0].start, ranges[0].stop, device=device)
    return placed(torch.tensor([number for part in ranges for number in part], dtype=torch.int64), device)


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A few numbers of the host's on a device; CUDA has taken them when this returns, and nobody waits for it."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def _take(tensor: Tensor, owners: Tensor | None, places: Tensor) -> Tensor:
    """Entries (n, ...) of a tensor (count, length, ...) at these places of their owners; None is the only one."""
    places = places.to(tensor.device)
    return tensor[0].index_select(0, places) if owners is None else tensor[owners.to(tensor.device), places]


def _put(tensor: Tensor, owners: Tensor | None, places: Tensor, values: Tensor) -> None:
    """Write entries (n, ...) to a tensor (count, length, ...) at these places of their owners; None is the only one."""
    places, values = places.to(tensor.device), values.to(tensor.device)
    if owners is None:
        tensor[0].index_copy_(0, places, values)
    else:
        tensor[owners.to(tensor.device), places] = values
