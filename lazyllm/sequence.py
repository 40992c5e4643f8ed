"""One sequence of a generation: whom its rows attend to, and which of its tokens go on at a stage."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed import ProcessGroup

from lazyllm.attention import FusedAttention, WindowMask, attend_in_blocks, attend_masked, causal, fits_one_block
from lazyllm.errors import LazyLLMError, unsupported
from lazyllm.ranking import newest_row, over_processes
from lazyllm.schedule import PruningSchedule
from lazyllm.selection import Selection, check_survivors
from lazyllm.sight import Sight
from lazyllm.stats import Stats
from lazyllm.tokens import Segment, TokenCache


@dataclass(frozen=True)
class Setup:
    """What the generations of one `with` have in common.

    Attributes:
        attention: the model's own attention kernel.
        rope_switch: number of positions beyond which the model's rotary tables change, if they do.
        rope_growth: number of positions beyond which they change with the longest sequence of a batch, if they do.
        windows: how many positions each layer's cache holds in the unmodified model; None where it holds all of them.
        group: the processes among which the model's heads are split; None means one process.
    """

    schedule: PruningSchedule
    attention: FusedAttention
    rope_switch: int | None
    rope_growth: int | None
    windows: list[int | None]
    group: ProcessGroup | None
    selection: Selection
    record_positions: bool
    record_importance: bool


class Sequence:
    """The tokens of one sequence, what ranks them, and the counts of it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.tokens = TokenCache(setup.schedule, len(setup.windows))
        self.stats = Stats(self.tokens, setup.record_positions)
        self._selection = setup.selection.copy_for(self.tokens)
        self._selection.group = setup.group
        self._sight: Sight | None = None

    def begin_step(self, new: int) -> None:
        """Start a forward pass with `new` tokens of this sequence."""
        self._sight = None
        self.tokens.begin_step(new)

    def end_step(self) -> None:
        """Count the forward pass that has gone through all layers."""
        self.stats.add_step(self.tokens)
        self.tokens.end_step()

    def cross(self, segment: Segment, hidden: torch.Tensor) -> torch.Tensor:
        """Cross the stage behind a segment: from its rows' hidden states, (1, rows, hidden), to the next one's."""
        active = self._selection.survivors(segment.layers[-1], segment.stage.kept(segment.n_active))
        if self._selection.checked:
            check_survivors(self._selection, active, segment)
            active = active.clone()  # whatever becomes of the selection's own tensor
        return self.tokens.prune(segment, hidden, active, self._selection.revives)

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
        """Attention of the rows over the active tokens, (1, rows, heads, value_dim).

        `query` is (1, heads, rows, head_dim), in the last layer maybe of the newest token alone; `key` and `value` are
        (1, kv_heads, stored, ...), as `TokenCache.update` returned them.
        """
        segment, attention = self.tokens.segment_of[layer], self.setup.attention
        if key.shape[2] != segment.stored:
            raise unsupported(f"decoder layer {layer} does not attend once, over its own cached keys")
        if window is not None and self.tokens.total <= window.window:
            window = None
        self._check_window(layer, window)
        extra = {} if softcap is None else {"softcap": softcap}
        if attention.ignores_softcap:
            softcap = None
        if self._selection.wants(layer):
            self.tokens.attended_values, self.tokens.attended_sinks = value, sinks
            # The ranking is exact whatever the model computes in.
            device = query.device.type
            with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
                self._selection.observe(layer, query, key, scaling, softcap)
            self.tokens.attended_values = self.tokens.attended_sinks = None
        if self.setup.record_importance and self.tokens.prefilling:
            importance = newest_row(query, key, None, scaling, softcap, sinks)
            self.stats.importance.append(over_processes(importance, self.setup.group, "mean"))
        # Whom a row sees follows from its index in prefilling, and is everyone where the newest token is alone.
        by_index = self.tokens.prefilling or (segment.n_rows == 1 and segment.present is None)
        if by_index and window is None and sinks is None and (softcap is None or attention.caps_scores):
            if query.shape[2] == 1 and attention.is_sdpa:  # the same kernel, with less ado
                return attend_masked(query, key, value, None, scaling).transpose(1, 2)
            return attention(module, query, key, value, None, dropout=0.0, scaling=scaling, **extra)
        if self._sight is None or not self._sight.serves(self.tokens, segment):
            self._sight = Sight(self.tokens, segment)
        sight, last = self._sight, slice(-query.shape[2], None)
        key, value = sight.of(key), sight.of(value)
        if window is None and fits_one_block(query.shape[1], segment.n_rows, key.shape[2]):
            attended = attend_masked(query, key, value, sight.mask[last], scaling, softcap, sinks)
            return attended.transpose(1, 2).contiguous()
        visible = causal if window is None else window.visible
        positions = sight.rows[last], sight.keys
        return attend_in_blocks(query, key, value, positions, sight.present, visible, scaling, softcap, sinks)

    def _check_window(self, layer: int, window: WindowMask | None) -> None:
        """Refuse a layer that drops tokens without saying so, or that cannot see the tokens it is to rank."""
        total, held = self.tokens.total, self.setup.windows[layer]
        if window is None and held is not None and total > held:
            raise LazyLLMError(
                f"the cache of layer {layer} drops all but {held} positions, which the layer's mask does not "
                f"say: this architecture is supported up to {held} tokens of prompt and answer"
            )
        if window is None or not self._selection.wants(layer):
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
