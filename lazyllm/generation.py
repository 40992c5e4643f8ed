"""One generation under LazyLLM: what happens around each decoder layer and in its attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lazyllm.arguments import TokenArguments, newest_alone
from lazyllm.attention import (
    FusedAttention,
    WindowMask,
    attend_in_blocks,
    attend_in_steps,
    attend_masked,
    causal,
    fits_one_block,
)
from lazyllm.cache import LazyCache, Segment
from lazyllm.errors import LazyLLMError
from lazyllm.importance import newest_row
from lazyllm.schedule import PruningSchedule
from lazyllm.selection import Selection
from lazyllm.stats import Stats


class _Stored(Exception):
    """A layer's keys and values are stored, which was all it was run for."""


class Generation:
    """The steps from one prompt to its last generated token.

    Args:
        schedule: the stages.
        num_layers: number of decoder layers.
        attention: the model's own attention kernel.
        selection: makes what ranks the tokens at the stages.
        record_positions: keep the positions of every step in `stats`.
        record_importance: keep the importance in every layer of prefilling in `stats`.
    """

    def __init__(
        self,
        schedule: PruningSchedule,
        num_layers: int,
        attention: FusedAttention,
        selection: Callable[[LazyCache], Selection],
        record_positions: bool,
        record_importance: bool,
    ) -> None:
        self.cache = LazyCache(schedule, num_layers)
        self.stats = Stats(self.cache, record_positions)
        self._attention = attention
        self._selection = selection(self.cache)
        self._record_importance = record_importance
        self._arguments = TokenArguments(self.cache)
        self._layer = -1
        self._last = num_layers - 1
        self._attended = False
        self._storing = False
        self._rotary = True
        self._unpadded: torch.Tensor | None = None
        self._masked: Segment | None = None
        self._sights: list[int] | None = None

    def begin_step(self, new: int, attention_mask: torch.Tensor | None, rope_switch: int | None) -> None:
        """Start a forward pass over `new` tokens.

        Args:
            new: tokens of the input.
            attention_mask: (1, positions) where given.
            rope_switch: number of positions beyond which the model's rotary tables change, if they do.

        Raises:
            LazyLLMError: a prompt the schedule cannot prune, or an input that is not one new token a step.
        """
        cache = self.cache
        if cache.prefilling:
            if new < 2 and len(cache.segments) > 1:
                raise LazyLLMError(
                    f"a prompt of {new} token leaves the schedule nothing to prune: it needs at least 2 tokens"
                )
        elif new != 1:
            raise LazyLLMError(
                f"{new} tokens came in one step after prefilling: LazyLLM takes the whole prompt in one forward "
                "pass, then one token a step (no prefill_chunk_size, assisted decoding or continued cache)"
            )
        elif rope_switch is not None and cache.prompt_length <= rope_switch < cache.seen + new:
            raise LazyLLMError(
                f"the generation crosses {rope_switch} positions, where this model's rotary tables change and all of "
                "its cache with them: use a longer prompt, or fewer new tokens"
            )
        self._note_padding(attention_mask)
        cache.begin_step(new)
        self._arguments.begin_step()
        self._layer = -1
        self._masked = None

    def end_step(self) -> None:
        """Close a forward pass that went through all layers."""
        self.stats.add_step(self.cache.seen, self.cache.total)
        self.cache.end_step()

    def _note_padding(self, attention_mask: torch.Tensor | None) -> None:
        """Check the mask; on an accelerator prefilling does not wait for the answer, the next step asks for it."""
        if attention_mask is not None:
            if attention_mask.ndim != 2:
                raise LazyLLMError("an attention mask of its own per query is not supported: LazyLLM is causal")
            unpadded = attention_mask.all()
            self._unpadded = unpadded if self._unpadded is None else self._unpadded & unpadded
            if unpadded.device.type == "cpu" or self.cache.seen == self.cache.prompt_length > 0:
                self.check_padding()

    def check_padding(self) -> None:
        """Raise `LazyLLMError` if a mask so far hid part of the prompt."""
        if self._unpadded is not None and not bool(self._unpadded):
            raise LazyLLMError(
                "the attention mask hides part of the prompt: LazyLLM takes one sequence without padding"
            )

    def before_layer(
        self, module: nn.Module, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The layer's arguments for the rows it computes; in the last layer, for the newest token.

        Returns:
            the arguments, or None where they stay as they are.
        """
        if layer > 0 and not self._attended:
            raise self._unattended()
        segment, follows = self.cache.segment_of[layer], layer == self._layer + 1
        self._layer, self._attended = layer, False
        if follows and not self.cache.prefilling and self._arguments.stay(layer, segment):
            return None
        hidden = args[0] if args else kwargs["hidden_states"]
        if not follows or hidden.ndim != 3:
            raise LazyLLMError(
                "the decoder layers do not pass one hidden state a token from each to the next: this "
                "architecture is not supported"
            )
        if any(isinstance(value, torch.Tensor) for value in args[1:]):
            raise LazyLLMError("the decoder layers take positional tensors that LazyLLM does not know how to prune")
        self._rotary = "position_embeddings" in kwargs
        kwargs = self._arguments.for_rows(layer, segment, kwargs)
        if layer == self._last and segment.n_rows > 1:
            return self._newest_alone(module, args, kwargs)
        return args, kwargs

    def _newest_alone(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Store the keys and values of the last layer's rows; its other work is needed for the newest token alone."""
        self._storing = True
        try:
            # Past the module's hooks, which belong to the pass that gives an output.
            module.forward(*args, **kwargs)
        except _Stored:
            pass
        finally:
            self._storing = False
        if args:
            args = (args[0][:, -1:], *args[1:])
        else:
            kwargs = {**kwargs, "hidden_states": kwargs["hidden_states"][:, -1:]}
        return args, newest_alone(kwargs)

    def after_layer(self, layer: int, output: torch.Tensor) -> torch.Tensor:
        """The hidden states that go on: after a stage those of the next layer's rows, after the last the newest's."""
        if not self._attended:
            raise self._unattended()
        if layer == self._last:
            newest = output[:, -1:]
            # Decoders from before rotary tables (GPT-2) reshape what comes out to the shape of their input.
            return newest if self._rotary else newest.expand(-1, self.cache.new, -1)
        segment = self.cache.segment_of[layer]
        return self.cache.prune(segment, output, self._selection.survivors(segment), self._selection.revives)

    def _unattended(self) -> LazyLLMError:
        return LazyLLMError(
            f"decoder layer {self._layer} did not attend through transformers' attention interface and cache: this "
            "architecture is not supported"
        )

    def mask(self, **kwargs: Any) -> WindowMask | None:
        """What stands for the attention mask: nothing where causality suffices (transformers' mask interface).

        Raises:
            LazyLLMError: a mask that is more than causality within a window of positions.
        """
        if not kwargs["allow_is_causal_skip"]:
            raise LazyLLMError("the model's attention mask is not plainly causal: LazyLLM cannot prune under it")
        window = kwargs.get("local_size")
        if window is None or self.cache.total <= window:
            return None
        return WindowMask(kwargs["mask_function"])

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
        """Attention of the rows over the active tokens (transformers' attention interface).

        Args:
            module: the attention module.
            query: (1, heads, rows, head_dim): the layer's rows, in the last layer the newest token alone.
            key: (1, kv_heads, n_keys, head_dim), as `LazyCache.update` returned it.
            value: (1, kv_heads, n_keys, value_dim).

        Returns:
            (1, rows, heads, value_dim), contiguous.

        Raises:
            LazyLLMError: attention with parts other than softmax over causal scores.
        """
        segment = self.cache.segment_of[self._layer]
        if self._storing:
            raise _Stored
        self._refuse_unsupported(module, segment, query, key, attention_mask, is_causal, kwargs)
        self._attended = True
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        extra = {} if softcap is None else {"softcap": softcap}
        if self._attention.ignores_softcap:
            softcap = None
        if self._selection.wants(self._layer):
            self._selection.observe(self._layer, query, key, scaling, softcap)
        if self._record_importance and self.cache.prefilling:
            self.stats.importance.append(newest_row(query, key, None, scaling, softcap))
        # Whom a row sees follows from its index in prefilling, and is everyone where the newest token is alone.
        by_index = self.cache.prefilling or (segment.n_rows == 1 and segment.present is None)
        if by_index and attention_mask is None and (softcap is None or self._attention.caps_scores):
            if query.shape[2] == 1 and self._attention.is_sdpa and not dropout:  # the same kernel, with less ado
                return attend_masked(query, key, value, None, scaling, None).transpose(1, 2)
            return self._attention(module, query, key, value, None, dropout=dropout, scaling=scaling, **extra)
        if attention_mask is None and fits_one_block(query.shape[1], segment.n_rows, segment.n_keys):
            mask = self._mask_of(segment)[-query.shape[2] :]
            if segment.gather is not None and softcap is None and query.shape[2] > 1 and query.device.type == "cpu":
                return attend_in_steps(query, key, value, mask, self._sights_of(segment), scaling)
            return attend_masked(query, key, value, mask, scaling, softcap).transpose(1, 2).contiguous()
        key_positions = self.cache.held(segment)
        query_positions = key_positions[self.cache.seen :] if segment.rows is None else segment.rows
        return attend_in_blocks(
            query,
            key,
            value,
            query_positions[-query.shape[2] :],
            key_positions,
            segment.present,
            causal if attention_mask is None else attention_mask.visible,
            scaling,
            softcap,
        )

    def _mask_of(self, segment: Segment) -> torch.Tensor:
        """Which keys each row sees, bool (n_rows, n_keys); the same in all the segment's layers."""
        if self._masked is not segment:
            self._masked, self._sights = segment, None
            held = self.cache.held(segment)
            rows = held[self.cache.seen :] if segment.rows is None else segment.rows
            self._row_mask = held <= rows[:, None]
            if segment.present is not None:
                self._row_mask &= segment.present
        return self._row_mask

    def _sights_of(self, segment: Segment) -> list[int]:
        """How many of the gathered keys each row sees, which are the first ones."""
        if self._sights is None:
            self._sights = self._row_mask.sum(dim=1).tolist()
        return self._sights

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
        rows = 1 if self._layer == self._last else segment.n_rows
        if self._attended or query.shape[2] != rows or key.shape[2] != segment.n_keys:
            raise LazyLLMError(
                f"decoder layer {self._layer} does not attend once, over its own cached keys: this architecture "
                "is not supported"
            )
        if attention_mask is not None and not isinstance(attention_mask, WindowMask):
            raise LazyLLMError("the model builds an attention mask of its own: this architecture is not supported")
        if attention_mask is not None and self._selection.wants(self._layer):
            raise LazyLLMError(
                f"layer {self._layer} sees only a window of the {self.cache.total} tokens, so it cannot rank them: "
                "put the stage after a layer with full attention, and take the importance of that layer alone"
            )
        if not self.cache.prefilling:
            return  # the rest is the same at every step
        if is_causal is False or not getattr(module, "is_causal", True):
            raise LazyLLMError(f"the attention of layer {self._layer} is not causal: LazyLLM cannot prune it")
        extra = [
            name
            for name, value in kwargs.items()
            if isinstance(value, torch.Tensor) and name not in ("position_ids", "cache_position")
        ]
        if extra:
            raise LazyLLMError(
                f"the attention takes {', '.join(extra)} besides queries, keys and values: this architecture is "
                "not supported"
            )
