"""The state of one generation: which tokens take part where, their keys and values, and the Aux Cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lazyllm.buffers import GrowingTensor
from lazyllm.errors import LazyLLMError
from lazyllm.schedule import PruningSchedule, Stage


@dataclass
class Segment:
    """The layers between two stages. All of them see the same tokens, so what holds for one holds for all.

    A token's key and value lie at the same slot in every layer of the segment, in the order of their
    computation, for good; those that sit out a step are masked. The first segment computes every token when it
    first appears: there, slot = position.

    Attributes:
        layers: the decoder layers of the segment.
        stage: the stage that ends it; None for the last segment.
        slots: slot of each position, int64 (positions,), -1 where nothing was computed; unused in the first.
        holders: position of each slot, int64 (stored,); unused in the first.
        stored: how many tokens have keys and values here.
        active: positions that take part in this step, sorted, int64 (n_active,); None means all of them.
        rows: the active positions computed in this step, sorted, int64 (n_rows,); None means the new tokens.
        present: which slots hold active tokens, bool (stored,); None means all of them.
    """

    layers: range
    stage: Stage | None
    slots: GrowingTensor = field(default_factory=lambda: GrowingTensor(0, fill=-1))
    holders: GrowingTensor = field(default_factory=lambda: GrowingTensor(0))
    stored: int = 0
    active: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    present: torch.Tensor | None = None
    n_active: int = 0
    n_rows: int = 0

    def to(self, device: torch.device) -> None:
        """Move what says where the tokens are to the device of the layer that runs."""
        self.slots.to(device)
        self.holders.to(device)
        self.active, self.rows, self.present = (
            None if part is None else part.to(device) for part in (self.active, self.rows, self.present)
        )


def partition(schedule: PruningSchedule, num_layers: int) -> list[Segment]:
    """Cut the layers into segments; a stage that keeps everything cuts nothing."""
    segments, start = [], 0
    for stage in schedule.pruning:
        segments.append(Segment(range(start, stage.layer + 1), stage))
        start = stage.layer + 1
    segments.append(Segment(range(start, num_layers), None))
    return segments


class TokenCache:
    """Keys and values of the computed tokens, and one hidden state for each token that was left behind.

    The Aux Cache (paper, section 3.2) is one slot a token, (1, positions, hidden) in the model's dtype: the
    active sets of a step are nested, so a token's keys and values always cover a prefix of the layers, and
    its output at the deepest layer it has reached is all that is needed to go on from there.

    On several devices the keys and values of a layer are where it runs, the Aux Cache where the first stage is, and a
    segment's tensors where its layer under way, or the last one that ran, is.

    Attributes:
        segments: the layers between the stages, in order of depth.
        segment_of: the segment of each layer.
        device: where the layer under way runs.
        seen: positions of the steps before the one under way.
        new: positions that the step under way began with.
        prompt_length: tokens of the first pass, which is the prompt, or its first chunk.
        attended_values: while a selection observes a layer, the values that its attention gets.
        attended_sinks: while it does, the logits that its attention has beside the scores, (heads,), if any.
    """

    def __init__(self, schedule: PruningSchedule, num_layers: int) -> None:
        self.segments = partition(schedule, num_layers)
        self.segment_of = [segment for segment in self.segments for _ in segment.layers]
        self.device: torch.device | None = None
        self.seen = 0
        self.new = 0
        self.prompt_length = 0
        self.keys = [GrowingTensor(-2) for _ in range(num_layers)]
        self.values = [GrowingTensor(-2) for _ in range(num_layers)]
        self.aux = GrowingTensor(1)
        self.attended_values: torch.Tensor | None = None
        self.attended_sinks: torch.Tensor | None = None

    @property
    def total(self) -> int:
        """Number of positions, the ones of the step under way included."""
        return self.seen + self.new

    @property
    def prefilling(self) -> bool:
        return self.seen == 0

    def begin_step(self, new: int) -> None:
        """Start a forward pass: every position takes part in the first segment."""
        if self.prefilling:
            self.prompt_length = new
        self.new = new
        first = self.segments[0]
        first.n_active = first.stored = self.total
        first.n_rows = new

    def end_step(self) -> None:
        """Count the tokens of the finished forward pass as seen."""
        self.seen, self.new = self.total, 0

    def held(self, segment: Segment) -> torch.Tensor:
        """Position of each key that attention gets, int64 (stored,)."""
        if segment is self.segments[0]:
            return torch.arange(self.total, device=self.device)
        return segment.holders.view

    def rows(self, segment: Segment) -> torch.Tensor:
        """Positions computed in this step, sorted, int64 (n_rows,)."""
        return self.held(segment)[self.seen :] if segment.rows is None else segment.rows

    def active(self, segment: Segment) -> torch.Tensor:
        """Positions that take part in this step, sorted, int64 (n_active,)."""
        return self.held(segment) if segment.active is None else segment.active

    def by_position(self, segment: Segment, importance: torch.Tensor) -> torch.Tensor:
        """Importance of each position, (positions,), -1 where it takes no part, from that of each key, (stored,)."""
        if segment is self.segments[0]:
            return importance
        if segment.present is not None:
            importance = importance.masked_fill(~segment.present, -1)
        return importance.new_full((self.total,), -1).index_copy_(0, self.held(segment), importance)

    def uncomputed(self, segment: Segment) -> torch.Tensor:
        """Which positions have no key and value behind the stage that ends `segment`, bool (positions,)."""
        if self.prefilling:
            return torch.ones(self.total, dtype=torch.bool, device=self.device)
        following = self.segments[self.segments.index(segment) + 1]
        following.to(self.device)
        return following.slots.extend(self.total, following.holders.view) < 0

    def prune(self, segment: Segment, output: torch.Tensor, active: torch.Tensor, revives: bool) -> torch.Tensor:
        """Cross the stage that ends `segment`: set up the next segment and return the hidden states of its rows.

        Args:
            segment: the segment whose last layer gave `output`.
            output: (1, n_rows, hidden), that layer's output.
            active: positions that go on, sorted, int64 (k,).
            revives: whether a token that was left behind may be among them.
        """
        following = self.segments[self.segments.index(segment) + 1]
        following.to(active.device)
        aux = self.aux.extend(self.total, output)
        if segment.rows is None:
            aux[:, self.seen :].copy_(output)
        else:
            aux.index_copy_(1, segment.rows.to(aux.device), output.to(aux.device))
        slots = following.slots.extend(self.total, active)
        # How many rows there are is asked of the device only where it is not known: in prefilling nothing is stored
        # yet, and without revival a step of one token computes that alone.
        if self.prefilling:
            rows = active
        elif revives or self.new > 1:
            rows = active[slots.index_select(0, active) < 0]
        else:
            rows = active[-1:]
        count = rows.shape[0]
        stored = following.stored + count
        slots.index_copy_(0, rows, torch.arange(following.stored, stored, device=rows.device))
        following.holders.append(rows)
        following.active, following.n_active = active, active.shape[0]
        following.rows, following.n_rows, following.stored = rows, count, stored
        following.present = None
        if stored > following.n_active:
            present = torch.zeros(stored, dtype=torch.bool, device=rows.device)
            following.present = present.index_fill_(0, slots.index_select(0, active), True)
        return aux.index_select(1, rows.to(aux.device)).to(output.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the rows' keys and values, (1, kv_heads, n_rows, ...); return all of the layer's, (..., stored, ...).

        If all rows are stored already (the last layer's second run), the newest token's overwrite the last entry.
        """
        segment = self.segment_of[layer]
        self.device = key_states.device
        if segment.rows is not None and segment.rows.device != self.device:
            segment.to(self.device)
        keys, values = self.keys[layer], self.values[layer]
        if values.length and values.view.dtype != value_states.dtype:
            raise LazyLLMError(
                f"the model computed in {values.view.dtype} before and in {value_states.dtype} now: keep its dtype, "
                "and autocast, the same from the prompt to the last token"
            )
        if keys.length < segment.stored:
            keys.append(key_states)
            values.append(value_states)
            if self.prefilling:
                return key_states, value_states
        else:
            keys.view[:, :, -1:].copy_(key_states)
            values.view[:, :, -1:].copy_(value_states)
        return keys.view, values.view
