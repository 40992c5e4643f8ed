"""Replace methods of an enabled model: its `generate`, and the `forward` of the model, decoder and layers."""

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn
from transformers import DynamicCache, GenerationConfig, StoppingCriteriaList
from transformers.generation import GenerationMode

from lazyllm.core.engine import Setup
from lazyllm.core.errors import LazyLLMError, unsupported
from lazyllm.core.schedule import PruningSchedule
from lazyllm.core.sequence import Stats
from lazyllm.hf import arguments, private
from lazyllm.hf.arguments import arguments_by_name
from lazyllm.hf.attention_interface import CAUSAL_MASK, CURRENT_ENGINE, CURRENT_MODEL
from lazyllm.hf.cache import LazyCache
from lazyllm.hf.engine import HFEngine
from lazyllm.hf.model_support import ModelParts, rope_switch


class Patch:
    """Call `replacement(original, *args, **kwargs)` in place of a module's method, until it is removed.

    It replaces a method, so that the user's own hooks still run before and after, as on the unmodified model.
    """

    def __init__(self, module: nn.Module, name: str, replacement: Callable[..., Any]) -> None:
        self._module, self._name = module, name
        self._replacement: Callable[..., Any] | None = replacement
        self._was_attribute = name in vars(module)
        self.original: Callable[..., Any] = getattr(module, name)
        self.__wrapped__ = self.original  # so that transformers sees the method's own signature
        setattr(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        replacement = self._replacement
        return self.original(*args, **kwargs) if replacement is None else replacement(self.original, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise LazyLLMError("a model is not copied or pickled while LazyLLM is enabled on it: do so outside the `with`")

    def remove(self) -> None:
        """Restore the method; remaining references to the patch call the original method."""
        self._replacement = None
        if vars(self._module).get(self._name) is not self:
            return  # a later patch replaced it and still calls it
        delattr(self._module, self._name)
        if self._was_attribute:
            setattr(self._module, self._name, self.original)


@dataclass
class _GenerateCall:
    """The settings and state of a call of `generate`; passes that `generate` itself prepares are the call's own."""

    num_tokens: int  # padded length of its prompts
    schedule: PruningSchedule | None  # its own
    protected: torch.Tensor | None  # which tokens of its prompts are protected, bool (batch, tokens), on the CPU
    chunked_tokens: int = 0  # padded length of prompts that come in chunks, else 0
    is_prepared: bool = False  # whether `generate` has prepared the inputs of its next pass
    engine: HFEngine | None = None  # that of its first pass, or of its own last one
    criteria: "_RecordingCriteria | None" = None


class _RecordingCriteria(StoppingCriteriaList):
    """Stopping criteria that record which sequences they have stopped."""

    _stopped: torch.Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        stopped = super().__call__(*args, **kwargs)
        self._stopped = stopped if self._stopped is None else self._stopped | stopped
        return stopped

    def has_ended(self, batch_size: int) -> Sequence[bool]:
        """Return which sequences have ended, whose new tokens are padding; empty means none."""
        # As in `generate`: without an EOS token, a batch runs until its last sequence has stopped.
        pads = batch_size > 1 and any(hasattr(criterion, "eos_token_id") for criterion in self)
        is_known = pads and self._stopped is not None and len(self._stopped) == batch_size
        return self._stopped.tolist() if is_known else ()


class _Thread(threading.local):
    call: _GenerateCall | None = None  # the innermost call of `generate`
    mask: Any = None  # the attention mask of the model's pass
    has_decoded = False  # whether that pass has run the decoder


class ModelPatches:
    """The replacements of one model's methods, each called with the original method first; see `Patch`."""

    def __init__(self, model: Any, parts: ModelParts, setup: Setup) -> None:
        self.sequences: list[Stats] = []  # of the generation that began last
        self._model, self._parts, self._setup = model, parts, setup
        self._rope_switch = rope_switch(parts.decoder.config)
        self._takes_positions = "position_ids" in inspect.signature(parts.decoder.forward).parameters
        self._thread = _Thread()

    def methods(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yield the methods to patch: module, name and replacement."""
        model, decoder = self._model, self._parts.decoder
        # If the model is compiled inside the `with`, these run uncompiled: they cannot be traced as a graph.
        yield decoder, "forward", torch.compiler.disable(self.decode)
        for index, layer in enumerate(self._parts.layers):
            yield layer, "forward", partial(_run_layer, index)
        yield model, "forward", torch.compiler.disable(self.forward)
        yield model, "generate", self.generate
        yield model, private.CHECK_MODE, self.check_mode
        yield model, "prepare_inputs_for_generation", self.prepare_inputs
        yield model, private.STOPPING_CRITERIA, self.stopping_criteria
        yield model, "init_continuous_batching", _refuse_continuous_batching

    def generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the model's `generate` with the schedule and protected tokens of this call."""
        # PEFT's prompt learning replaces this method of the model by its own.
        if getattr(self._model.prepare_inputs_for_generation, "__self__", self._model) is not self._model:
            raise LazyLLMError(arguments.PROMPT_LEARNING)
        schedule, protect = kwargs.pop("schedule", None), kwargs.pop("protect", None)
        named = arguments_by_name(generate, args, kwargs)
        _refuse_foreign(cache := named.get(private.CACHE))
        num_tokens = (shape := arguments.prompt_shape(named))[1]
        if isinstance(cache, LazyCache) and num_tokens <= (computed := cache.get_seq_length()):
            instead = "give all tokens so far, or the new ones with an attention_mask of all"
            raise LazyLLMError(f"{num_tokens} tokens came with the cache of {computed}: {instead}")
        if schedule is not None:
            schedule = arguments.read_schedule(schedule, self._setup.windows, self._setup.ranking)
        call = _GenerateCall(num_tokens, schedule, arguments.read_protected(protect, shape))
        outer, self._thread.call = self._thread.call, call
        try:
            return generate(*args, **kwargs)
        finally:
            self._thread.call = outer

    def check_mode(self, check: Callable[..., Any], mode: GenerationMode, config: GenerationConfig, *args: Any) -> Any:
        """Check the mode of a call of `generate`, and note whether its prompts come in chunks."""
        arguments.check_mode(mode, config)
        if self._thread.call is not None and config.prefill_chunk_size is not None:
            self._thread.call.chunked_tokens = self._thread.call.num_tokens
        return check(mode, config, *args)

    def prepare_inputs(self, prepare: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Prepare the inputs of a pass of `generate`, and note that the next pass is its own."""
        inputs = prepare(*args, **kwargs)
        if self._thread.call is not None:
            self._thread.call.is_prepared = True
        return inputs

    def stopping_criteria(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> _RecordingCriteria:
        """Make the stopping criteria of a call of `generate`."""
        criteria = _RecordingCriteria(make(*args, **kwargs))
        if self._thread.call is not None:
            self._thread.call.criteria = criteria
        return criteria

    def forward(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a pass of the model; refuse one that asks for other logits than the newest tokens'."""
        inputs, thread = arguments_by_name(forward, args, kwargs), self._thread
        arguments.check_logits(inputs)
        arguments.check_outputs(inputs, self._model.config)
        # A pass may run inside another one: in a hook, or in a callback of `generate`.
        model, engine = CURRENT_MODEL.set(self), CURRENT_ENGINE.set(None)
        thread.has_decoded, thread.mask = False, inputs.get("attention_mask")
        try:
            output = forward(*args, **kwargs)
        finally:
            CURRENT_MODEL.reset(model)
            CURRENT_ENGINE.reset(engine)
        if not thread.has_decoded:
            raise unsupported(f"{type(self._model).__name__} did not run the decoder")
        return output

    def decode(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a pass of the decoder, one step of a generation; output only the newest tokens."""
        inputs, thread, call = arguments_by_name(forward, args, kwargs), self._thread, self._thread.call
        batch_size, width = arguments.input_tokens(inputs).shape[:2]
        mask = inputs.get("attention_mask")
        if all(each is CAUSAL_MASK for each in (mask.values() if isinstance(mask, dict) else [mask])):
            inputs = {**inputs, "attention_mask": thread.mask}
        if CURRENT_MODEL.get() is not self:
            raise LazyLLMError("the decoder was called by itself, for hidden states of every token: call the model")
        arguments.check_outputs(inputs, self._parts.decoder.config)
        thread.has_decoded, is_own = True, call is not None and call.is_prepared
        cache = inputs.get(private.CACHE)
        engine = self._engine(cache, batch_size, call, is_own)
        arguments.check_inputs(inputs)
        known: dict[str, Any] = {}
        if call is not None and call.engine is not engine and (is_own or call.engine is None):
            call.engine = engine
            if call.protected is not None:
                engine.protected = call.protected.repeat_interleave(batch_size // len(call.protected), dim=0)
        if is_own:
            call.is_prepared = False
            known["has_ended"] = () if call.criteria is None else call.criteria.has_ended(batch_size)
            known["more_chunks"] = call.chunked_tokens - engine.packer.num_columns > width
        with engine.step(inputs, known) as packed:
            if packed is not inputs and not self._takes_positions:
                raise LazyLLMError("the decoder takes no position_ids: generate one sequence at a time")
            lazy_cache = cache if isinstance(cache, LazyCache) else LazyCache.of_engine(engine, cache)
            if not engine.sequences[0].stats.steps:
                self.sequences = lazy_cache.sequences
            output = forward(**{**packed, private.CACHE: lazy_cache, "use_cache": True})
        if isinstance(output, tuple):
            return (engine.newest_hidden(output[0]), *output[1:])
        output.last_hidden_state = engine.newest_hidden(output.last_hidden_state)
        return output

    def _engine(self, cache: Any, batch_size: int, call: _GenerateCall | None, is_own: bool) -> HFEngine:
        """Return the engine that a pass over `batch_size` sequences continues, or a new one.

        Every pass within `call`, its own or not, follows the schedule of the call.
        """
        chunked_tokens = call.chunked_tokens if is_own else 0
        schedule = None if call is None else call.schedule
        setup = self._setup if schedule is None else replace(self._setup, schedule=schedule)
        if not isinstance(cache, LazyCache):
            _refuse_foreign(cache)
            engine = HFEngine(setup, batch_size, chunked_tokens, is_own, self._rope_switch)
            if self._parts.is_stateful:
                if batch_size > 1:
                    raise LazyLLMError("layers of this model carry a state of one sequence: generate one at a time")
                engine.state_layers = DynamicCache(config=self._parts.decoder.config).layers
            return engine
        engine = cache.engine
        if engine.setup.kernel is not setup.kernel:
            raise LazyLLMError("this cache is from an earlier `with` or of another model: use each in its own `with`")
        begun = engine.setup.schedule
        if is_own and call.engine is not engine and schedule not in (None, begun, engine.sequences[0].stats.schedule):
            raise LazyLLMError(f"the cache is of a generation with the schedule {begun.spec!r}: leave out any other")
        if len(engine.sequences) != batch_size:
            raise LazyLLMError(f"{batch_size} sequences came with the cache of {len(engine.sequences)}")
        return engine


def _run_layer(index: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    engine = CURRENT_ENGINE.get()
    # Without an engine the layer runs unpatched, and its attention is refused.
    return forward(*args, **kwargs) if engine is None else engine.run_layer(index, forward, args, kwargs)


def _refuse_continuous_batching(*args: Any, **kwargs: Any) -> None:
    raise LazyLLMError("continuous batching is not supported: call generate with a batch of prompts")


def _refuse_foreign(cache: Any) -> None:
    """Refuse a cache that is neither LazyLLM's nor an empty one that can become it."""
    is_empty = type(cache) is DynamicCache and not cache.offloading and cache.get_seq_length() == 0
    if cache is not None and not isinstance(cache, LazyCache) and not is_empty:
        instead = "leave out past_key_values and cache_implementation, or give an empty DynamicCache()"
        raise LazyLLMError(f"a {type(cache).__name__} from outside is not supported: {instead}")
