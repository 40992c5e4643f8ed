"""What happens when an enabled model generates: its calls of `generate`, its passes, its decoder's passes."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from lazyllm.ahead import WITHIN, without
from lazyllm.anatomy import Anatomy
from lazyllm.attention import CURRENT, NAME
from lazyllm.cache import LazyCache
from lazyllm.detour import by_name
from lazyllm.ended import Ended
from lazyllm.errors import LazyLLMError
from lazyllm.generation import Generation
from lazyllm.inputs import check_arguments, check_flags, check_logits, check_ways, size
from lazyllm.packing import Known
from lazyllm.rope_deltas import RopeDeltas
from lazyllm.row_by_row import check_inputs_own
from lazyllm.sequence import Setup
from lazyllm.stats import Stats
from lazyllm.traffic import Traffic

# Calls of `generate` that are given a decoding loop, or positions, of the user's own.
_OWN_WAY, _OWN_POSITIONS = "generate in one's own way", "generate at one's own positions"


class _Thread(threading.local):
    """What is known of the `generate` that a thread is in.

    Attributes:
        generation: what it goes on with, once its mask has been read, which only grows by ones from there on. Other
            generations may run within: guidance has one of its own.
        ended: its stopping criteria.
        chunked: how many of its tokens come in chunks.
        decoded: whether the pass of the whole model that is under way, or was last, has come to the decoder.
    """

    decoded = False
    chunked = 0
    generation: Generation | None = None
    ended: Ended | None = None


class Passes:
    """Stands between the callers of one model and its own methods; see `Detour` for what each is called with.

    Attributes:
        traffic: what is under way on the model.
        sequences: counts of each sequence of the generation that began last.
        rope_deltas: what the model keeps of the positions of images.
    """

    def __init__(self, model: nn.Module, anatomy: Anatomy, setup: Setup, newest_only: bool) -> None:
        self.traffic = Traffic()
        self.sequences: list[Stats] = []
        self.rope_deltas = RopeDeltas(model)
        self._model = model
        self._decoder = anatomy.decoder
        self._layers = anatomy.layers
        self._setup = setup
        self._newest_only = newest_only
        self._thread = _Thread()
        first = next((stage.layer for stage in setup.schedule.pruning), len(anatomy.layers))
        # So many layers give the outputs of all tokens; the last one gives the newest token's alone.
        self._complete = min(first + 1, len(anatomy.layers) - 1)

    def generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call of the model's `generate`."""
        check_inputs_own(self._model)
        given = by_name(generate, args, kwargs)
        chunked = check_ways(given, self._model.generation_config)
        _refuse_outside(given.get("past_key_values"))
        way = "generate" if given.get("position_ids") is None else _OWN_POSITIONS
        way = way if given.get("custom_generate") is None else _OWN_WAY
        thread = self._thread
        outer = thread.generation, thread.ended, thread.chunked
        thread.generation, thread.ended, thread.chunked = None, None, chunked
        deltas = self.rope_deltas.of(given.get("past_key_values"))
        try:
            with self.traffic.enter("generate"), self.traffic.enter(way), deltas:
                return generate(*args, **kwargs)
        finally:
            thread.generation, thread.ended, thread.chunked = outer

    def criteria(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Ended:
        """The stopping criteria that `generate` makes."""
        self._thread.ended = Ended(make(*args, **kwargs))
        return self._thread.ended

    def call(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The whole model's forward pass."""
        given = by_name(forward, args, kwargs)
        with self.traffic.enter("model"):
            # Guidance, within `generate`, asks for the logits of every token and for a cache, and reads the newest's.
            guided = self.traffic.inside("generate") and given.get("use_cache")
            check_logits(given, every_token=self._newest_only or bool(guided))
            check_flags(given, self._model.config)
            # A pass may be called within another one's, by a hook, or within `generate`, by what it calls.
            within, outer = WITHIN.set(True), CURRENT.set(None)
            cache, back = given.get("past_key_values"), self.traffic.inside("generate")
            self._thread.decoded = False
            try:
                with nullcontext() if self._is_generates(cache) else self.rope_deltas.of(cache, back):
                    output = forward(*args, **kwargs)
            finally:
                WITHIN.reset(within)
                CURRENT.reset(outer)
            if not self._thread.decoded:
                raise LazyLLMError(
                    f"{type(self._model).__name__} did not run its {type(self._decoder).__name__}, the decoder that "
                    "LazyLLM found in it: this architecture is not supported"
                )
            return output

    def _is_generates(self, cache: Any) -> bool:
        """Whether a pass with this cache is of the `generate` that the thread is in, which knows its positions."""
        began = self._thread.generation
        own = began is None or (isinstance(cache, LazyCache) and cache.generation is began)
        return self.traffic.inside("generate") and own

    def decode(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The decoder's forward pass: one step of a generation."""
        kwargs = by_name(forward, args, kwargs)
        if not self._newest_only and not self.traffic.inside("model"):
            raise LazyLLMError(
                "the decoder was called by itself, for hidden states of every token: LazyLLM computes the newest "
                "token's alone, so call the whole model, or accept that with lazyllm.enable(..., newest_only=True)"
            )
        count, width = size(kwargs)
        if (mask := kwargs.get("attention_mask")) is not None:
            window = getattr(self._decoder.config, "sliding_window", None)
            kwargs = {**kwargs, "attention_mask": without(mask, window)}
        check_flags(kwargs, self._decoder.config)
        check_arguments(kwargs, self._complete)
        if self._layers[0].training and getattr(self._layers[0], "gradient_checkpointing", False):
            raise LazyLLMError(
                "gradient checkpointing is on and leaves no keys and values: call model.eval() before generating"
            )
        self._thread.decoded = True
        if self._decoder.config._attn_implementation != NAME:
            raise LazyLLMError(
                "the model's attention implementation was set inside the `with`, which leaves LazyLLM out: set it "
                "before the `with`"
            )
        with self.traffic.enter("decoder"):
            given = kwargs.get("past_key_values")
            generation = self._generation(given, count)
            with generation.step(kwargs, self._known(generation, kwargs, width)) as packed:
                if packed is not kwargs and "position_ids" not in inspect.signature(forward).parameters:
                    raise LazyLLMError(
                        f"{type(self._decoder).__name__} takes no position_ids, which tell the sequences of a batch "
                        "from their padding: generate one sequence at a time"
                    )
                cache = given if isinstance(given, LazyCache) else LazyCache.of(generation, given)
                begun = cache is not given or not generation.sequences[0].stats.steps
                if begun and self._thread.generation in (None, generation):
                    self.sequences = cache.sequences
                if width > 1:
                    generation.rope_deltas = self.rope_deltas.get()
                self.rope_deltas.let_go()
                output = forward(**{**packed, "past_key_values": cache, "use_cache": True})
            return _newest(output, generation)

    def _known(self, generation: Generation, kwargs: dict[str, Any], width: int) -> Known:
        """What is known of a pass of this width: what `generate` makes itself is not read."""
        generating = self.traffic.inside("generate") and not self.traffic.inside(_OWN_WAY)
        mask, positions, ended = kwargs.get("attention_mask"), kwargs.get("position_ids"), self._thread.ended
        mine = self._thread.generation in (None, generation)
        own = generating and mine
        follows = own and self._thread.generation is not None
        left = self._thread.chunked - generation.packing.columns if own else 0
        grows = bool(follows and generation.packing.columns and left <= 0)
        if own:
            self._thread.generation = generation
        # Positions of images, in height and width, have a dimension more.
        plain = isinstance(positions, torch.Tensor) and positions.ndim == 2
        counted = own and plain and not self.traffic.inside(_OWN_POSITIONS)
        count = len(generation.sequences)
        flags = ended.flags(count) if mine and ended is not None else [False] * count
        return Known(None if grows else mask, grows, flags, counted, chunked=left > width, follows=follows)

    def _generation(self, cache: Any, count: int) -> Generation:
        """The generation that a pass over `count` sequences goes on with."""
        if isinstance(cache, LazyCache):
            if cache.generation.setup is not self._setup:
                raise LazyLLMError(
                    "this cache is from an earlier generation or of another model: a generation stays within one "
                    "`with` of lazyllm.enable, from its prompt on"
                )
            if len(cache.generation.sequences) != count:
                raise LazyLLMError(
                    f"{count} sequences came with the cache of {len(cache.generation.sequences)}: a generation goes on "
                    "with the sequences it began with"
                )
            return cache.generation
        _refuse_outside(cache)
        return Generation(self._setup, count)


def layer_run(index: int, layer: nn.Module) -> Callable[..., Any]:
    """What a decoder layer does in a pass of its model."""

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        step = CURRENT.get()
        # Outside a step the layer's own attention says what is the matter.
        return forward(*args, **kwargs) if step is None else step.run_layer(index, layer, forward, *args, **kwargs)

    return run


def _refuse_outside(cache: Any) -> None:
    """Refuse a cache that is neither LazyLLM's nor an empty one to become it."""
    empty = type(cache) is DynamicCache and not cache.offloading and cache.get_seq_length() == 0
    if cache is not None and not isinstance(cache, LazyCache) and not empty:
        raise LazyLLMError(
            f"a {type(cache).__name__} from outside is not supported: LazyLLM keeps a cache of its own, so leave out "
            "past_key_values, or give an empty DynamicCache()"
        )


def _newest(output: Any, generation: Generation) -> Any:
    if isinstance(output, tuple):
        return (generation.newest(output[0]), *output[1:])
    output.last_hidden_state = generation.newest(output.last_hidden_state)
    return output
