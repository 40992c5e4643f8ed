"""The state of one generation: which tokens take part where, their keys and values, and the Aux Cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from transformers import Cache

from lazyllm.buffers import GrowingTensor
from lazyllm.errors import LazyLLMError
from lazyllm.schedule import PruningSchedule, Stage


@dataclass
class Segment:
    """The layers between two stages. All of them see the same tokens, so what holds for one holds for all.

    A token's key and value lie at the same slot in every layer of the segment, in the order of their
    computation. The first segment computes every token when it first appears: there, slot = position.

    Attributes:
        layers: the decoder layers of the segment.
        stage: the stage that ends it; None for the last segment.
        slots: slot of each position, int64 (positions,), -1 where nothing was computed; unused in the first.
        stored: how many tokens have keys and values here.
        active: positions that take part in this step, sorted, int64 (n_active,); None means all of them.
        rows: the active positions computed in this step, sorted, int64 (n_rows,); None means the new tokens.
        gather: slots of `active`, int64 (n_active,); None means that all slots, in order, are active.
    """

    layers: range
    stage: Stage | None
    slots: GrowingTensor = field(default_factory=lambda: GrowingTensor(0, fill=-1))
    stored: int = 0
    active: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    gather: torch.Tensor | None = None
    n_active: int = 0
    n_rows: int = 0


def partition(schedule: PruningSchedule, num_layers: int) -> list[Segment]:
    """Cut `num_layers` layers into segments; a stage that keeps everything cuts nothing."""
    segments, start = [], 0
    for stage in schedule.stages:
        if stage.keep < 1:
            segments.append(Segment(range(start, stage.layer + 1), stage))
            start = stage.layer + 1
    segments.append(Segment(range(start, num_layers), None))
    return segments


class LazyCache(Cache):
    """Keys and values of the computed tokens, and one hidden state for each token that was left behind.

    It stands where transformers expects a `Cache`, so `generate` carries it from step to step. Batch size 1.

    The Aux Cache (paper, section 3.2) is one slot a token, (1, positions, hidden) in the model's dtype: the
    active sets of a step are nested, so a token's keys and values always cover a prefix of the layers, and
    its output at the deepest layer it has reached is all that is needed to go on from there.
    """

    def __init__(self, schedule: PruningSchedule, num_layers: int) -> None:
        super().__init__(layers=[])
        self.segments = partition(schedule, num_layers)
        self.segment_of = [segment for segment in self.segments for _ in segment.layers]
        self.seen = 0
        self.new = 0
        self.prompt_length = 0
        self.keys = [GrowingTensor(-2) for _ in range(num_layers)]
        self.values = [GrowingTensor(-2) for _ in range(num_layers)]
        self.aux = GrowingTensor(1)

    @property
    def total(self) -> int:
        """Number of positions, the ones of the step under way included."""
        return self.seen + self.new

    @property
    def prefilling(self) -> bool:
        return self.seen == 0

    def begin_step(self, new: int) -> None:
        """Start a forward pass over `new` tokens: every position takes part in the first segment."""
        if self.prefilling:
            self.prompt_length = new
        self.new = new
        first = self.segments[0]
        first.n_active = first.stored = self.total
        first.n_rows = new

    def end_step(self) -> None:
        """Count the tokens of the finished forward pass as seen."""
        self.seen, self.new = self.total, 0

    def prune(self, segment: Segment, output: torch.Tensor, survivors: torch.Tensor) -> torch.Tensor:
        """Cross the stage that ends `segment`: set up the next segment and return the hidden states of its rows.

        Args:
            segment: the segment whose last layer gave `output`.
            output: (1, n_rows, hidden), that layer's output.
            survivors: indices into the segment's active tokens that go on, sorted, int64 (k,).

        Returns:
            (1, rows of the next segment, hidden): fresh outputs for the survivors computed just now, Aux Cache
            entries for revived tokens.
        """
        following = self.segments[self.segments.index(segment) + 1]
        active = survivors if segment.active is None else segment.active.index_select(0, survivors)
        aux = self.aux.extend(self.total, output)
        if segment.rows is None:
            aux[:, self.seen :].copy_(output)
        else:
            aux.index_copy_(1, segment.rows, output)
        slots = following.slots.extend(self.total, active)
        if self.prefilling:
            # Sizes are known beforehand and nothing is cached yet: no need to ask the device anything.
            rows, hidden = active, output.index_select(1, survivors)
        else:
            rows = active[slots.index_select(0, active) < 0]
            hidden = aux.index_select(1, rows)
        count = rows.shape[0]
        slots.index_copy_(0, rows, torch.arange(following.stored, following.stored + count, device=rows.device))
        following.active, following.n_active = active, active.shape[0]
        following.rows, following.n_rows = rows, count
        following.gather = None if self.prefilling else slots.index_select(0, active)
        following.stored += count
        return hidden

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the rows' keys and values; return those of the layer's active tokens in order of position.

        Args:
            key_states: (1, kv_heads, n_rows, head_dim).
            value_states: (1, kv_heads, n_rows, head_dim).
            layer_idx: the decoder layer.

        Returns:
            keys and values, (1, kv_heads, n_active, head_dim) each.
        """
        keys = self.keys[layer_idx].append(key_states)
        values = self.values[layer_idx].append(value_states)
        gather = self.segment_of[layer_idx].gather
        if self.prefilling:
            return key_states, value_states
        if gather is None:
            return keys, values
        return keys.index_select(2, gather), values.index_select(2, gather)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.total, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    @property
    def is_croppable(self) -> bool:
        return False

    def _unsupported(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise LazyLLMError(
            "LazyLLM's cache grows by one generated token a step: assisted or beam decoding, cache rollback and "
            "layers with a recurrent state are not supported"
        )

    crop = reset = reorder_cache = batch_repeat_interleave = batch_select_indices = _unsupported
    activate_past_recording = has_previous_state = update_conv_state = update_recurrent_state = _unsupported
