"""What happens when an enabled model is called: its `generate`, its forward pass, its decoder's, its layers'."""

import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, StoppingCriteriaList

from lazyllm.core.schedule import PruningSchedule
from lazyllm.core.state import Setup
from lazyllm.core.stats import Stats
from lazyllm.hf import requests
from lazyllm.hf.attention_interface import CURRENT, NAME
from lazyllm.hf.cache import LazyCache
from lazyllm.hf.generation import Generation
from lazyllm.hf.images import WITHIN, RopeDeltas, padding_of
from lazyllm.hf.patching import Calls, by_name
from lazyllm.hf.refusals import refuse_if
from lazyllm.hf.support import Anatomy, rope_limits


@dataclass
class _Generate:
    """What is known of a call of `generate`."""

    own_positions: bool  # whether it was given positions of the user's own
    chunked: int  # how many of its tokens come in chunks
    guided: bool  # whether a generation besides its own guides it
    schedule: PruningSchedule | None = None  # one of its own
    protect: Any = None  # its own, or the session's; see `read_protected`
    prompts: torch.Tensor | None = None  # their ids, int64 (sequences, tokens), where there is something to protect
    protected: torch.Tensor | None = None  # which of these tokens are protected, bool (sequences, tokens), on the CPU
    # What transformers made for its next pass: each tensor, and its version then. None where something else made it.
    made: dict[str, tuple[torch.Tensor, int | None]] | None = None
    cache: Any = None  # of its passes; others may run within
    generation: Generation | None = None  # what its last pass was of
    ended: "Ended | None" = None

    def has_made(self, name: str, given: Any) -> bool:
        """Whether an argument of a pass is what transformers made, and unchanged: then its values need no reading."""
        if self.made is None:
            return False
        made, version = self.made.get(name, (None, None))
        return given is made and (given is None or (version is not None and given._version == version))


class Ended(StoppingCriteriaList):
    """The stopping criteria of a call of `generate`, which remember whom they stopped."""

    _done: torch.Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        done = super().__call__(*args, **kwargs)
        self._done = done if self._done is None else self._done | done
        return done

    def flags(self, count: int) -> Sequence[bool]:
        """Which of `count` sequences have ended, so that what comes of them is padding; empty where none has."""
        # As `generate` does: without an end token, others go on until all have stopped. An only sequence ends it.
        pads = count > 1 and any(hasattr(criterion, "eos_token_id") for criterion in self)
        return self._done.tolist() if pads and self._done is not None and len(self._done) == count else ()


class _Thread(threading.local):
    """What a thread is in."""

    generate: _Generate | None = None  # the innermost call
    mask: Any = None  # of the pass of the whole model
    decoded = False  # whether that has run the decoder


class ModelCalls:
    """Stands between the callers of one model and its own methods; see `Patch` for what each is called with."""

    def __init__(
        self, model: Any, anatomy: Anatomy, setup: Setup, deltas: RopeDeltas, protect: Any, newest_only: bool
    ) -> None:
        self.under_way = Calls()
        self.sequences: list[Stats] = []  # of the generation that began last
        self.rope_deltas = deltas
        self._model, self._anatomy, self._layers = model, anatomy, list(anatomy.layers)
        self._setup, self._rope_limits = setup, rope_limits(anatomy.decoder.config)
        self._takes_positions = "position_ids" in inspect.signature(anatomy.decoder.forward).parameters
        self.protect, self._newest_only = protect, newest_only
        self._thread = _Thread()

    def generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call of the model's `generate`."""
        # PEFT's prompt learning puts itself between `generate` and the model's inputs.
        owner = getattr(self._model.prepare_inputs_for_generation, "__self__", self._model)
        refuse_if(owner is not self._model, "virtual_tokens", owner=type(owner).__name__)
        given = by_name(generate, args, kwargs)
        chunked, guided = requests.check_ways(given, self._model.generation_config)
        call = _Generate(given.get("position_ids") is not None, chunked, guided)
        if (schedule := requests.setting("schedule", given, self._model.generation_config)) is not None:
            call.schedule = requests.read_schedule(schedule, self._setup.windows, self._setup.selection)
        call.protect = requests.setting("protect", given, self)
        if call.protect is not None:
            call.prompts = given.get("input_ids") if given.get("inputs") is None else given["inputs"]
            call.protected = requests.read_protected(call.protect, call.prompts, given.get("attention_mask"))
        kwargs = {name: value for name, value in kwargs.items() if name not in ("schedule", "protect")}
        _refuse_outside(cache := given.get("past_key_values"))
        outer, self._thread.generate = self._thread.generate, call
        try:
            with self.under_way.enter("generate"), self.rope_deltas.of(cache):
                return generate(*args, **kwargs)
        finally:
            self._thread.generate = outer

    def prepare(self, prepare: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `generate` makes for a pass."""
        made = prepare(*args, **kwargs)
        if (call := self._thread.generate) is not None:
            # LongRoPE models drop the empty cache of a long prompt, and a pass without one would not be known as ours.
            if made.get("past_key_values") is None:
                made["past_key_values"] = DynamicCache()
            call.cache = made["past_key_values"]
            # What a user's own class makes is read.
            by_transformers = getattr(prepare, "__module__", "").startswith("transformers.")
            call.made = {} if by_transformers else None
            for name in ("attention_mask", "position_ids") if by_transformers else ():
                if isinstance(value := made.get(name), torch.Tensor):
                    call.made[name] = value, None if value.is_inference() else value._version
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
            requests.check_logits(given, every_token=self._newest_only or guided)
            requests.check_flags(given, self._model.config)
            # A pass may be called within another one's, by a hook, or within `generate`, by what it calls.
            within, outer = WITHIN.set(self), CURRENT.set(None)
            thread.decoded, thread.mask = False, given.get("attention_mask")
            cache = given.get("past_key_values")
            knows = call is not None and cache is not None and cache is call.cache  # its positions
            try:
                with nullcontext() if knows else self.rope_deltas.of(cache, back=call is not None):
                    output = forward(*args, **kwargs)
            finally:
                WITHIN.reset(within)
                CURRENT.reset(outer)
            refuse_if(not thread.decoded, "architecture", what=f"{type(self._model).__name__} did not run the decoder")
            return output

    def decode(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The decoder's forward pass: one step of a generation."""
        kwargs, decoder, layers = by_name(forward, args, kwargs), self._anatomy.decoder, self._layers
        refuse_if(not self._newest_only and WITHIN.get() is not self, "decoder_alone")
        count, width = requests.size(kwargs)
        mask = kwargs.get("attention_mask")
        if mask is not None and not isinstance(mask, torch.Tensor):
            padding = padding_of(mask, getattr(decoder.config, "sliding_window", None))
            # Masks are made ahead of a copy of the padding.
            kwargs = {**kwargs, "attention_mask": padding if padding is None else self._thread.mask}
        requests.check_flags(kwargs, decoder.config)
        refuse_if(layers[0].training and getattr(layers[0], "gradient_checkpointing", False), "checkpointing")
        self._thread.decoded = True
        refuse_if(list(self._anatomy.layers) != layers, "layer_replaced")
        refuse_if(decoder.config._attn_implementation != NAME, "attention_set")
        with self.under_way.enter("a forward pass"):
            given, call = kwargs.get("past_key_values"), self._thread.generate
            own = call is not None and given is not None and given is call.cache
            generation = self._generation(given, count, width, call, own)
            if own and call.protected is not None and call.generation is not generation:
                generation.protected = call.protected.repeat_interleave(count // len(call.protected), dim=0)
            elif not own and not generation.batch.columns:
                generation.protected = self._protected(kwargs, call)
            requests.check_arguments(kwargs, len(generation.groups[0].layers))
            known = _known(call, generation, kwargs, width) if own else {}
            with generation.step(kwargs, known) as packed:
                refuse_if(packed is not kwargs and not self._takes_positions, "no_position_ids", decoder=decoder)
                cache = given if isinstance(given, LazyCache) else LazyCache.of(generation, given)
                begun = cache is not given or not generation.sequences[0].stats.steps
                if begun and (own or call is None or call.cache is None):
                    self.sequences = cache.sequences
                if width > 1:
                    generation.rope_deltas = self.rope_deltas.get()
                output = forward(**{**packed, "past_key_values": cache, "use_cache": True})
            if isinstance(output, tuple):
                return (generation.newest(output[0]), *output[1:])
            output.last_hidden_state = generation.newest(output.last_hidden_state)
            return output

    def _generation(self, cache: Any, count: int, width: int, call: _Generate | None, own: bool) -> Generation:
        """The generation that a pass goes on with, over `count` sequences, of so many tokens.

        The pass is within `call`, as its `own` or by what it calls, which goes by its schedule, too.
        """
        chunked = call.chunked if own else 0
        brought = None if call is None else call.schedule
        setup = self._setup if brought is None else replace(self._setup, schedule=brought)
        if not isinstance(cache, LazyCache):
            _refuse_outside(cache)
            short = max(width, chunked) < setup.min_tokens
            generation = Generation(setup, count, self._rope_limits, chunked, short)
            generation.is_prompt_whole = own
            if self._anatomy.stateful:
                refuse_if(count > 1, "one_sequence")
                generation.state_layers = DynamicCache(config=self._anatomy.decoder.config).layers
            return generation
        begun = cache.generation
        refuse_if(begun.setup.kernel is not setup.kernel, "earlier_cache")
        same = None, begun.setup.schedule, begun.sequences[0].stats.schedule
        other = own and call.generation is not begun and brought not in same
        refuse_if(other, "other_schedule", begun=begun.setup.schedule)
        refuse_if(len(begun.sequences) != count, "other_count", count=count, cache=len(begun.sequences))
        return begun

    def _protected(self, kwargs: dict[str, Any], call: _Generate | None) -> torch.Tensor | None:
        """Return which tokens of a pass are protected, where it begins a generation that is not `call`'s own.

        It is what `call` runs besides or instead of its own passes: a guiding pass, a processor's, a custom loop's. A
        mask or spans are of the call's prompts, and protect what begins like these.
        """
        ids, protect = kwargs.get("input_ids"), self.protect if call is None else call.protect
        if ids is not None and ids.shape[1] == 1:
            return None  # the newest token is always kept
        if call is None or call.protected is None or callable(protect):
            return requests.read_protected(protect, ids, kwargs.get("attention_mask"))
        if call.guided or ids is None or len(ids) % len(call.prompts):
            return None
        copies, width = len(ids) // len(call.prompts), min(ids.shape[1], call.prompts.shape[1])
        prompts = call.prompts.repeat_interleave(copies, dim=0)[:, :width].to(ids.device)
        return call.protected.repeat_interleave(copies, dim=0) if torch.equal(prompts, ids[:, :width]) else None


def _known(call: _Generate, generation: Generation, kwargs: dict[str, Any], width: int) -> dict[str, Any]:
    """What `Batch.pack` may take for known in a pass of this width, one of the call's own."""
    follows, call.generation = call.generation is generation, generation
    columns, positions = generation.batch.columns, kwargs.get("position_ids")
    masked = call.has_made("attention_mask", kwargs.get("attention_mask"))
    # Positions of images, in height and width, have a dimension more.
    plain = isinstance(positions, torch.Tensor) and positions.ndim == 2
    counted = plain and not call.own_positions and call.has_made("position_ids", positions)
    return {
        "ended": () if call.ended is None else call.ended.flags(len(generation.sequences)),
        # The mask of the prompts has been read by then.
        "grows": follows and masked and columns >= call.chunked,
        "counted": counted and masked and (follows or columns == 0),
        "chunked": call.chunked - columns > width,
    }


def run_layer(index: int, layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a decoder layer does in a pass of its model."""
    step = CURRENT.get()
    # Outside a step the layer's own attention says what is the matter.
    return forward(*args, **kwargs) if step is None else step.run_layer(index, layer, forward, args, kwargs)


def _refuse_outside(cache: Any) -> None:
    """Refuse a cache that is neither LazyLLM's nor an empty one to become it."""
    empty = type(cache) is DynamicCache and not cache.offloading and cache.get_seq_length() == 0
    outside = cache is not None and not isinstance(cache, LazyCache) and not empty
    refuse_if(outside, "outside_cache", cache=type(cache).__name__)
