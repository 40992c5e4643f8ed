"""One generation under LazyLLM: what happens around each decoder layer and in its attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lazyllm.arguments import TokenArguments
from lazyllm.attention import FusedAttention, WindowMask, attend_in_blocks, causal
from lazyllm.cache import LazyCache, Segment
from lazyllm.errors import LazyLLMError
from lazyllm.importance import newest_row
from lazyllm.schedule import PruningSchedule
from lazyllm.selection import Selection
from lazyllm.stats import Stats


class Generation:
    """The steps from one prompt to its last generated token.

    Args:
        schedule: the stages.
        num_layers: number of decoder layers.
        attention: the model's own attention kernel.
        selection: what ranks the tokens at the stages.
        record_positions: keep the positions of every step in `stats`.
        record_importance: keep the importance in every layer of prefilling in `stats`.
    """

    def __init__(
        self,
        schedule: PruningSchedule,
        num_layers: int,
        attention: FusedAttention,
        selection: type[Selection],
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
        self._attended = False
        self._rotary = True
        self._unpadded: torch.Tensor | None = None

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

    def before_layer(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The layer's keyword arguments for the rows it computes."""
        hidden = args[0] if args else kwargs["hidden_states"]
        if layer != self._layer + 1 or hidden.ndim != 3:
            raise LazyLLMError(
                "the decoder layers do not pass one hidden state a token from each to the next: this "
                "architecture is not supported"
            )
        if any(isinstance(value, torch.Tensor) for value in args[1:]):
            raise LazyLLMError("the decoder layers take positional tensors that LazyLLM does not know how to prune")
        self._layer, self._attended = layer, False
        self._rotary = "position_embeddings" in kwargs
        return self._arguments.for_rows(layer, self.cache.segment_of[layer], kwargs)

    def after_layer(self, layer: int, output: torch.Tensor) -> torch.Tensor:
        """The hidden states that go on: those of the next layer's rows, after the last layer the newest's."""
        if not self._attended:
            raise LazyLLMError(
                f"decoder layer {layer} did not attend through transformers' attention interface and cache: this "
                "architecture is not supported"
            )
        segment = self.cache.segment_of[layer]
        if layer == len(self.cache.segment_of) - 1:
            newest = output[:, -1:]
            # Decoders from before rotary tables (GPT-2) reshape what comes out to the shape of their input.
            return newest if self._rotary else newest.expand(-1, self.cache.new, -1)
        if layer != segment.layers[-1]:
            return output
        return self.cache.prune(segment, output, self._selection.survivors(segment))

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
            query: (1, heads, n_rows, head_dim).
            key: (1, kv_heads, n_active, head_dim), as `LazyCache.update` returned it.
            value: (1, kv_heads, n_active, value_dim).

        Returns:
            (1, n_rows, heads, value_dim).

        Raises:
            LazyLLMError: attention with parts other than softmax over causal scores.
        """
        segment = self.cache.segment_of[self._layer]
        self._refuse_unsupported(module, segment, query, key, attention_mask, is_causal, kwargs)
        self._attended = True
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        extra = {} if softcap is None else {"softcap": softcap}
        if self._attention.ignores_softcap:
            softcap = None
        wanted, recorded = self._selection.wants(self._layer), self._record_importance and self.cache.prefilling
        if wanted or recorded:
            importance = newest_row(query, key, scaling, softcap)
            if wanted:
                self._selection.observe(importance)
            if recorded:
                self.stats.importance.append(importance)
        by_index = self.cache.prefilling or segment.n_rows == 1
        if by_index and attention_mask is None and (softcap is None or self._attention.caps_scores):
            return self._attention(module, query, key, value, None, dropout=dropout, scaling=scaling, **extra)
        key_positions = segment.active
        if key_positions is None:
            key_positions = torch.arange(self.cache.total, device=query.device)
        query_positions = key_positions[self.cache.seen :] if segment.rows is None else segment.rows
        visible = causal if attention_mask is None else attention_mask.visible
        return attend_in_blocks(query, key, value, query_positions, key_positions, visible, scaling, softcap)

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
        if self._attended or query.shape[2] != segment.n_rows or key.shape[2] != segment.n_active:
            raise LazyLLMError(
                f"decoder layer {self._layer} does not attend once, over its own cached keys: this architecture "
                "is not supported"
            )
        if attention_mask is not None and not isinstance(attention_mask, WindowMask):
            raise LazyLLMError("the model builds an attention mask of its own: this architecture is not supported")
        if attention_mask is not None and self._selection.wants(self._layer):
            raise LazyLLMError(
                f"layer {self._layer} sees only a window of the {self.cache.total} tokens, so it cannot rank them: "
                "put the stage after a layer with full attention"
            )
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
