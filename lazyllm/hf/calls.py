"""What happens when an enabled model is called: its `generate`, its forward pass, its decoder's, its layers'."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, StoppingCriteriaList

from lazyllm.core.stats import Stats
from lazyllm.hf.adapters import check_inputs_own
from lazyllm.hf.attention_interface import CURRENT, NAME
from lazyllm.hf.batch import Known
from lazyllm.hf.cache import LazyCache
from lazyllm.hf.generation import Generation, ModelSetup
from lazyllm.hf.images import WITHIN, RopeDeltas, padding_of
from lazyllm.hf.patching import by_name
from lazyllm.hf.refusals import refuse_if
from lazyllm.hf.requests import check_arguments, check_flags, check_logits, check_ways, size
from lazyllm.hf.support import Anatomy
from lazyllm.hf.threads import Calls


@dataclass
class _Generate:
    """What is known of a call of `generate`.

    Attributes:
        own_positions: whether it was given positions of the user's own.
        guided: whether it is guided, by a generation besides its own.
        chunked: how many of its tokens come in chunks.
        made: the arguments that transformers made for its next pass: each tensor, and its version then. None where
            something else made them, whose values are read.
        cache: the cache of its passes; others may run within.
        generation: what it goes on with, once its mask has been read, which only grows by ones from there on.
        ended: its stopping criteria.
    """

    own_positions: bool
    guided: bool
    chunked: int
    made: dict[str, tuple[torch.Tensor, int | None]] | None = None
    cache: Any = None
    generation: Generation | None = None
    ended: Ended | None = None

    def has_made(self, name: str, given: Any) -> bool:
        """Whether an argument of a pass is what transformers made, and unchanged: then its values need no reading."""
        if self.made is None:
            return False
        made, version = self.made.get(name, (None, 0))
        return given is made and (given is None or (version is not None and given._version == version))


class Ended(StoppingCriteriaList):
    """The stopping criteria of a call of `generate`, which remember whom they stopped."""

    def __init__(self, criteria: StoppingCriteriaList) -> None:
        super().__init__(criteria)
        # As `generate` does: without an end token, others go on until all have stopped.
        self._pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._done: torch.Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        done = super().__call__(*args, **kwargs)
        self._done = done if self._done is None else self._done | done
        return done

    def flags(self, count: int) -> list[bool]:
        """Which of `count` sequences have ended, so that what comes of them is padding."""
        # An only sequence ends its `generate`.
        known = self._pads and count > 1 and self._done is not None and len(self._done) == count
        return self._done.tolist() if known else [False] * count


class _Thread(threading.local):
    """What a thread is in: the innermost call of `generate`, and the pass of the whole model, with its mask."""

    generate: _Generate | None = None
    in_model = False
    decoded = False
    mask: Any = None


class ModelCalls:
    """Stands between the callers of one model and its own methods; see `Patch` for what each is called with.

    Attributes:
        under_way: the calls that are under way on the model.
        sequences: counts of each sequence of the generation that began last.
        rope_deltas: what the model keeps of the positions of images.
    """

    def __init__(self, model: nn.Module, anatomy: Anatomy, setup: ModelSetup, newest_only: bool) -> None:
        self.under_way = Calls()
        self.sequences: list[Stats] = []
        self.rope_deltas = RopeDeltas(anatomy.with_rope_deltas)
        self._model = model
        self._decoder = anatomy.decoder
        self._stack = anatomy.layers
        self._layers = list(anatomy.layers)
        self._setup = setup
        self._newest_only = newest_only
        self._thread = _Thread()
        # What a user's own class makes for a pass is read.
        makes = getattr(getattr(model, "prepare_inputs_for_generation", None), "__module__", "")
        self._makes_itself = makes.startswith("transformers.")
        first = next((stage.layer for stage in setup.schedule.pruning), len(anatomy.layers))
        # So many layers give the outputs of all tokens.
        self._complete = min(first + 1, len(anatomy.layers))

    def generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call of the model's `generate`."""
        check_inputs_own(self._model)
        given = by_name(generate, args, kwargs)
        asked = check_ways(given, self._model.generation_config)
        _refuse_outside(cache := given.get("past_key_values"))
        outer = self._thread.generate
        self._thread.generate = _Generate(given.get("position_ids") is not None, asked.guided, asked.chunked)
        kept = cache.generation.rope_deltas if isinstance(cache, LazyCache) else None
        try:
            with self.under_way.enter("generate"), self.rope_deltas.of(kept):
                return generate(*args, **kwargs)
        finally:
            self._thread.generate = outer

    def prepare(self, prepare: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `generate` makes for a pass."""
        made = prepare(*args, **kwargs)
        if (call := self._thread.generate) is not None:
            call.cache = made.get("past_key_values")
            if self._makes_itself:
                tensors = ((name, made.get(name)) for name in ("attention_mask", "position_ids"))
                call.made = {
                    name: (value, None if value.is_inference() else value._version)
                    for name, value in tensors
                    if isinstance(value, torch.Tensor)
                }
        return made

    def criteria(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Ended:
        """The stopping criteria that `generate` makes."""
        ended = Ended(make(*args, **kwargs))
        if self._thread.generate is not None:
            self._thread.generate.ended = ended
        return ended

    def forward(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The whole model's forward pass."""
        given, call, thread = by_name(forward, args, kwargs), self._thread.generate, self._thread
        with self.under_way.enter("a forward pass"):
            # Guidance asks for the logits of every token and for a cache, and reads the newest's.
            guided = call is not None and call.guided and bool(given.get("use_cache"))
            check_logits(given, every_token=self._newest_only or guided)
            check_flags(given, self._model.config)
            # A pass may be called within another one's, by a hook, or within `generate`, by what it calls.
            within, outer, outer_pass = WITHIN.set(True), CURRENT.set(None), thread.in_model
            thread.in_model, thread.decoded, thread.mask = True, False, given.get("attention_mask")
            cache = given.get("past_key_values")
            kept = cache.generation.rope_deltas if isinstance(cache, LazyCache) else None
            knows = call is not None and cache is not None and cache is call.cache  # its positions
            try:
                with nullcontext() if knows else self.rope_deltas.of(kept, back=call is not None):
                    output = forward(*args, **kwargs)
            finally:
                thread.in_model = outer_pass
                WITHIN.reset(within)
                CURRENT.reset(outer)
            refuse_if(
                not thread.decoded,
                "decoder_not_run",
                model=type(self._model).__name__,
                decoder=type(self._decoder).__name__,
            )
            return output

    def decode(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The decoder's forward pass: one step of a generation."""
        kwargs = by_name(forward, args, kwargs)
        refuse_if(not self._newest_only and (not self._thread.in_model), "decoder_alone")
        count, width = size(kwargs)
        mask = kwargs.get("attention_mask")
        if mask is not None and not isinstance(mask, torch.Tensor):
            window = getattr(self._decoder.config, "sliding_window", None)
            padding = padding_of(mask, window)
            # Masks are made ahead of a copy of the padding.
            kwargs = {**kwargs, "attention_mask": padding if padding is None else self._thread.mask}
        check_flags(kwargs, self._decoder.config)
        check_arguments(kwargs, self._complete)
        refuse_if(
            self._layers[0].training and getattr(self._layers[0], "gradient_checkpointing", False), "checkpointing"
        )
        self._thread.decoded = True
        refuse_if(any((now is not then for now, then in zip(self._stack, self._layers, strict=True))), "layer_replaced")
        refuse_if(self._decoder.config._attn_implementation != NAME, "attention_set")
        with self.under_way.enter("a forward pass"):
            given, call = kwargs.get("past_key_values"), self._thread.generate
            generation = self._generation(given, count)
            own = call is not None and given is not None and given is call.cache
            with generation.step(kwargs, self._known(call if own else None, generation, kwargs, width)) as packed:
                refuse_if(
                    packed is not kwargs and "position_ids" not in inspect.signature(forward).parameters,
                    "no_position_ids",
                    decoder=type(self._decoder).__name__,
                )
                cache = given if isinstance(given, LazyCache) else LazyCache.of(generation, given)
                begun = cache is not given or not generation.sequences[0].stats.steps
                if begun and (own or call is None or call.cache is None):
                    self.sequences = cache.sequences
                if width > 1:
                    generation.rope_deltas = self.rope_deltas.get()
                self.rope_deltas.let_go()
                output = forward(**{**packed, "past_key_values": cache, "use_cache": True})
            return _newest(output, generation)

    def _known(self, call: _Generate | None, generation: Generation, kwargs: dict[str, Any], width: int) -> Known:
        """What is known of a pass of this width, of this call of `generate` if it is one of its own."""
        mask, count = kwargs.get("attention_mask"), len(generation.sequences)
        if call is None:
            return Known(mask, grows=False, ended=[False] * count, counted=False, chunked=False, follows=False)
        follows, call.generation = call.generation is generation, generation
        columns = generation.batch.columns
        left = call.chunked - columns
        masked = call.has_made("attention_mask", mask)
        grows = follows and columns > 0 and left <= 0 and masked
        positions = kwargs.get("position_ids")
        # Positions of images, in height and width, have a dimension more.
        plain = isinstance(positions, torch.Tensor) and positions.ndim == 2
        counted = plain and not call.own_positions and call.has_made("position_ids", positions)
        counted = counted and masked and (follows or columns == 0)
        ended = [False] * count if call.ended is None else call.ended.flags(count)
        return Known(None if grows else mask, grows, ended, counted, chunked=left > width, follows=follows)

    def _generation(self, cache: Any, count: int) -> Generation:
        """The generation that a pass over `count` sequences goes on with."""
        if isinstance(cache, LazyCache):
            refuse_if(cache.generation.setup is not self._setup, "earlier_cache")
            refuse_if(
                len(cache.generation.sequences) != count,
                "other_count",
                count=count,
                cache=len(cache.generation.sequences),
            )
            return cache.generation
        _refuse_outside(cache)
        return Generation(self._setup, count)


def run_layer(index: int, layer: nn.Module) -> Callable[..., Any]:
    """What a decoder layer does in a pass of its model."""

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        step = CURRENT.get()
        # Outside a step the layer's own attention says what is the matter.
        return forward(*args, **kwargs) if step is None else step.run_layer(index, layer, forward, args, kwargs)

    return run


def _refuse_outside(cache: Any) -> None:
    """Refuse a cache that is neither LazyLLM's nor an empty one to become it."""
    empty = type(cache) is DynamicCache and not cache.offloading and cache.get_seq_length() == 0
    refuse_if(
        cache is not None and (not isinstance(cache, LazyCache)) and (not empty),
        "outside_cache",
        cache=type(cache).__name__,
    )


def _newest(output: Any, generation: Generation) -> Any:
    if isinstance(output, tuple):
        return (generation.newest(output[0]), *output[1:])
    output.last_hidden_state = generation.newest(output.last_hidden_state)
    return output
