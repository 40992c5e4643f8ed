"""One generation under LazyLLM: what happens around each decoder layer and in its attention."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lazyllm.attention import (
    CURRENT,
    FusedAttention,
    WindowMask,
    attend_in_blocks,
    attend_masked,
    causal,
    fits_one_block,
)
from lazyllm.errors import LazyLLMError, unsupported
from lazyllm.inputs import check_step
from lazyllm.last_layer import LastLayer, widened
from lazyllm.layer_inputs import LayerInputs, with_hidden
from lazyllm.ranking import newest_row
from lazyllm.schedule import PruningSchedule
from lazyllm.selection import Selection, check_survivors
from lazyllm.stats import Stats
from lazyllm.tokens import Segment, TokenCache


@dataclass(frozen=True)
class Setup:
    """What the generations of one `with` have in common.

    Attributes:
        attention: the model's own attention kernel.
        rope_switch: number of positions beyond which the model's rotary tables change, if they do.
        windows: how many positions each layer's cache holds in the unmodified model; None where it holds all of them.
    """

    schedule: PruningSchedule
    attention: FusedAttention
    rope_switch: int | None
    windows: list[int | None]
    selection: Selection
    record_positions: bool
    record_importance: bool


class Generation:
    """The steps from one prompt to its last generated token."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.tokens = TokenCache(setup.schedule, len(setup.windows))
        self.stats = Stats(self.tokens, setup.record_positions)
        self._selection = setup.selection.copy_for(self.tokens)
        self._inputs = LayerInputs(self.tokens)
        self._last = len(setup.windows) - 1
        self._last_layer = LastLayer()
        self._under_way = threading.Lock()
        self._broken = False
        self._layer = -1
        self._in_layer = False
        self._attended = False
        self._rotary = True
        self._masked: Segment | None = None

    @contextmanager
    def step(self, new: int) -> Iterator[None]:
        """A forward pass over `new` tokens."""
        if not self._under_way.acquire(blocking=False):
            raise LazyLLMError("a forward pass with this cache is under way already: each generation has its own")
        try:
            if self._broken:
                raise LazyLLMError("a forward pass with this cache broke off, so it is half-written: start anew")
            check_step(self.tokens, new, self.setup.rope_switch)
            self.tokens.begin_step(new)
            self._inputs.begin_step()
            self._layer, self._masked = -1, None
            outer = CURRENT.set(self)
            self._broken = True
            try:
                yield
            finally:
                CURRENT.reset(outer)
            if self._layer != self._last:
                ran = f"{self._layer + 1} of its {self._last + 1}"
                raise LazyLLMError(f"the model ran {ran} decoder layers: this is not supported")
            self.stats.add_step(self.tokens)
            self.tokens.end_step()
            self._broken = False
        finally:
            self._under_way.release()

    def offset(self) -> int | torch.Tensor:
        """By how much positions exceed indexes: of the tokens of the next pass, in a layer of the rows it computes.

        One number, or where pruning left gaps one a row, int64 (rows,). Llama 4 asks for it in its attention, and adds
        the rows' indexes to get their positions.
        """
        if not self._in_layer:
            return self.tokens.seen
        segment = self.tokens.segment_of[self._layer]
        if self._last_layer.alone or segment.n_rows == 1:
            return self.tokens.total - 1
        if segment.rows is None:
            return self.tokens.seen
        return segment.rows - torch.arange(segment.n_rows, device=segment.rows.device)

    def run_layer(self, layer: int, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The own `forward` of decoder layer `layer`, over the rows it computes.

        What comes in is the output of the layer before, (1, its rows, hidden), all that hooks did to it included, and
        is what the Aux Cache keeps of a token that a stage in between leaves behind.
        """
        tokens = self.tokens
        hidden = args[0] if args else kwargs.get("hidden_states")
        segment, before = tokens.segment_of[layer], tokens.segment_of[max(layer - 1, 0)]
        if layer != self._layer + 1 or not isinstance(hidden, torch.Tensor) or hidden.shape[:-1] != (1, before.n_rows):
            raise unsupported("the decoder layers do not pass one hidden state a token from each to the next")
        if segment is not before:
            hidden = self._cross(before, hidden)
            args, kwargs = with_hidden(hidden, args, kwargs)
        self._layer, self._in_layer, self._attended = layer, True, False
        if tokens.prefilling or not self._inputs.stay(layer, segment):
            if any(isinstance(value, torch.Tensor) for value in args[1:]):
                raise LazyLLMError("the decoder layers take positional tensors that LazyLLM does not know how to prune")
            self._rotary = "position_embeddings" in kwargs
            kwargs = self._inputs.for_rows(layer, segment, kwargs)
        if layer == self._last and segment.n_rows > 1 and self._last_layer.serves(module):
            output = self._last_layer.run(forward, hidden, args, kwargs)
        else:
            output = forward(*args, **kwargs)
        self._in_layer = False
        if not self._attended:
            raise unsupported(
                f"decoder layer {layer} did not attend through transformers' attention interface and cache"
            )
        # Decoders from before rotary tables (GPT-2) reshape what comes out to the shape of their input.
        return output if self._rotary or layer < self._last else widened(output, tokens.new)

    def _cross(self, segment: Segment, hidden: torch.Tensor) -> torch.Tensor:
        """Cross the stage behind a segment: from its rows' hidden states, (1, rows, hidden), to the next one's."""
        active = self._selection.survivors(segment.layers[-1], segment.stage.kept(segment.n_active))
        if self._selection.checked:
            check_survivors(self._selection, active, segment)
            active = active.clone()  # whatever becomes of the selection's own tensor
        return self.tokens.prune(segment, hidden, active, self._selection.revives)

    def mask(self, **kwargs: Any) -> WindowMask | None:
        """What stands for the attention mask: nothing where causality suffices (transformers' mask interface)."""
        if not kwargs["allow_is_causal_skip"]:
            raise LazyLLMError("the model's attention mask is not plainly causal: LazyLLM cannot prune under it")
        window = kwargs.get("local_size")
        if window is None or self.tokens.total <= window:
            return None
        return WindowMask(kwargs["mask_function"], window)

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: WindowMask | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        softcap: float | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attention of the rows over the active tokens, (1, rows, heads, value_dim): transformers' attention interface.

        `query` is (1, heads, rows, head_dim), in the last layer maybe of the newest token alone; `key` and `value` are
        (1, kv_heads, stored, ...), as `TokenCache.update` returned them.
        """
        segment = self.tokens.segment_of[self._layer]
        self._last_layer.attend()
        if dropout:
            raise LazyLLMError("the model is in training mode, with dropout: call model.eval() before generating")
        self._refuse_unsupported(module, segment, query, key, attention_mask, is_causal, kwargs)
        self._attended = True
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        extra = {} if softcap is None else {"softcap": softcap}
        if self.setup.attention.ignores_softcap:
            softcap = None
        if self._selection.wants(self._layer):
            self.tokens.attended_values = value
            # The ranking is exact whatever the model computes in.
            device = query.device.type
            with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
                self._selection.observe(self._layer, query, key, scaling, softcap)
            self.tokens.attended_values = None
        if self.setup.record_importance and self.tokens.prefilling:
            self.stats.importance.append(newest_row(query, key, None, scaling, softcap))
        # Whom a row sees follows from its index in prefilling, and is everyone where the newest token is alone.
        by_index = self.tokens.prefilling or (segment.n_rows == 1 and segment.present is None)
        if by_index and attention_mask is None and (softcap is None or self.setup.attention.caps_scores):
            if query.shape[2] == 1 and self.setup.attention.is_sdpa:  # the same kernel, with less ado
                return attend_masked(query, key, value, None, scaling, None).transpose(1, 2)
            return self.setup.attention(module, query, key, value, None, dropout=0.0, scaling=scaling, **extra)
        if attention_mask is None and fits_one_block(query.shape[1], segment.n_rows, segment.stored):
            mask = self._mask_of(segment)[-query.shape[2] :]
            return attend_masked(query, key, value, mask, scaling, softcap).transpose(1, 2).contiguous()
        visible = causal if attention_mask is None else attention_mask.visible
        positions = self.tokens.rows(segment)[-query.shape[2] :], self.tokens.held(segment)
        return attend_in_blocks(query, key, value, positions, segment.present, visible, scaling, softcap)

    def _mask_of(self, segment: Segment) -> torch.Tensor:
        """Which keys each row sees, bool (n_rows, stored); the same in all the segment's layers."""
        if self._masked is not segment:
            self._masked = segment
            self._row_mask = self.tokens.held(segment) <= self.tokens.rows(segment)[:, None]
            if segment.present is not None:
                self._row_mask &= segment.present
        return self._row_mask

    def _refuse_unsupported(
        self,
        module: nn.Module,
        segment: Segment,
        query: torch.Tensor,
        key: torch.Tensor,
        attention_mask: WindowMask | None,
        is_causal: bool | None,
        kwargs: dict[str, Any],
    ) -> None:
        rows = 1 if self._last_layer.alone else segment.n_rows
        if self._attended or query.shape[2] != rows or key.shape[2] != segment.stored:
            raise unsupported(f"decoder layer {self._layer} does not attend once, over its own cached keys")
        if attention_mask is not None and not isinstance(attention_mask, WindowMask):
            raise unsupported("the model builds an attention mask of its own")
        if attention_mask is not None and self._selection.wants(self._layer):
            raise self._blind(attention_mask)
        window = self.setup.windows[self._layer]
        if attention_mask is None and window is not None and self.tokens.total > window:
            raise LazyLLMError(
                f"the cache of layer {self._layer} drops all but {window} positions, which the layer's mask does not "
                f"say: this architecture is supported up to {window} tokens of prompt and answer"
            )
        if not self.tokens.prefilling:
            return  # the rest is the same at every step
        if is_causal is False or not getattr(module, "is_causal", True):
            raise LazyLLMError(f"the attention of layer {self._layer} is not causal: LazyLLM cannot prune it")
        tensors = {name for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        if extra := sorted(tensors - {"position_ids", "cache_position"}):
            raise unsupported(f"the attention takes {', '.join(extra)} besides queries, keys and values")

    def _blind(self, mask: WindowMask) -> LazyLLMError:
        total = self.tokens.total
        if None not in self.setup.windows:
            return LazyLLMError(
                f"every layer of this model sees only a window of {mask.window} tokens, so none can rank {total} of "
                f"them: prompt and answer must fit into {mask.window} tokens"
            )
        return LazyLLMError(
            f"layer {self._layer} sees only a window of {mask.window} of the {total} tokens, so it cannot rank them: "
            "put the stage after a layer with full attention, and take the importance of that layer alone"
        )
