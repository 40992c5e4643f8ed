"""Turns LazyLLM on for a model, and off again."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from inspect import isabstract
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import nn
from transformers import DynamicCache

from lazyllm.ahead import WITHIN, without
from lazyllm.anatomy import check_same, dissect, rope_growth, rope_switch, windows
from lazyllm.attention import CURRENT, NAME, EnabledName, FusedAttention
from lazyllm.cache import LazyCache
from lazyllm.detour import Detour, by_name
from lazyllm.ended import Ended
from lazyllm.errors import LazyLLMError
from lazyllm.generation import Generation
from lazyllm.importance import Importance
from lazyllm.inputs import check_arguments, check_flags, check_logits, check_ways, size
from lazyllm.row_by_row import check_inputs_own, through_wrapper, unwrapped
from lazyllm.schedule import PruningSchedule
from lazyllm.selection import Selection
from lazyllm.sequence import Setup
from lazyllm.stats import Stats, only
from lazyllm.traffic import Traffic

# Calls of `generate` that are given a decoding loop, or positions, of the user's own.
_OWN_WAY, _OWN_POSITIONS = "generate in one's own way", "generate at one's own positions"


class _Thread(threading.local):
    """What is known of the `generate` that a thread is in.

    Attributes:
        generation: what it goes on with, once its mask has been read, which only grows by ones from there on. Other
            generations may run within: guidance has one of its own.
        ended: its stopping criteria.
        decoded: whether the pass of the whole model that is under way, or was last, has come to the decoder.
    """

    decoded = False
    generation: Generation | None = None
    ended: Ended | None = None


class Session:
    """LazyLLM on one model, from `with` to its end; made by `lazyllm.enable`."""

    def __init__(
        self,
        model: nn.Module,
        schedule: PruningSchedule | str | Iterable[tuple[int, float]],
        selection: Selection,
        newest_only: bool,
        record_positions: bool,
        record_importance: bool,
    ) -> None:
        _check_selection(selection)
        self._given, model = model, unwrapped(model)
        anatomy = dissect(model, newest_only)
        if anatomy.group is not None and not selection.parallel:
            name = type(selection).__name__
            raise LazyLLMError(
                f"the model's heads are split over processes, and {name} does not say that it ranks alike in all of "
                f"them: put importance together with self.over_processes, and say `class {name}(..., parallel=True)`"
            )
        schedule = PruningSchedule.of(schedule, len(anatomy.layers))
        schedule.check(len(anatomy.layers))
        if selection.single_stage and len(schedule.stages) != 1:
            name = type(selection).__name__
            raise LazyLLMError(f"{name} prunes at one stage, not at the {len(schedule.stages)} of {schedule.spec!r}")
        self.schedule = schedule
        self._model = model
        self._anatomy = anatomy
        self._decoder = anatomy.decoder
        self._layers = anatomy.layers
        self._newest_only = newest_only
        self._wanted = selection, record_positions, record_importance
        self._detours: list[Detour] = []
        self._traffic: Traffic | None = None
        self._sequences: list[Stats] = []
        self._thread = _Thread()

    @property
    def stats(self) -> Stats:
        """Counts of the generation that began last, of one sequence; `past_key_values.stats` of an output are its own.

        One that `generate` runs besides its own, as guidance does, is not counted as begun.

        Raises:
            LazyLLMError: nothing has been generated, or several sequences at once.
        """
        return only(self.sequences)

    @property
    def sequences(self) -> list[Stats]:
        """Counts of each sequence of the generation that began last; an output's `past_key_values` have its own."""
        if not self._sequences:
            raise LazyLLMError("nothing has been generated under lazyllm.enable yet, so there are no stats")
        return self._sequences

    def __enter__(self) -> Session:
        check_same(self._model, self._anatomy)
        config = self._decoder.config
        reach = windows(config, len(self._layers))
        rope = rope_switch(config), rope_growth(config)
        group = self._anatomy.group
        self._setup = Setup(self.schedule, FusedAttention(config), *rope, reach, group, *self._wanted)
        self._traffic = Traffic()
        _set_attention(config, EnabledName(config._attn_implementation))
        try:
            self._detour()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._traffic is None:
            raise LazyLLMError("this session was never entered: use it as `with lazyllm.enable(...)`")
        if not self._detours:
            return  # left before
        try:
            quiet = self._traffic.close()
        finally:
            self._restore()
        if not quiet and kind is None:
            raise LazyLLMError(
                "another thread generates under this `with` and waits for something else than the model, such as a "
                "streamer that is read after the `with`: read it inside"
            )

    def _detour(self) -> None:
        if self._model.can_generate():
            self._detours.append(Detour(self._model, "generate", self._generate))
            self._detours.append(Detour(self._model, "_get_stopping_criteria", self._criteria))
        if self._given is not self._model:
            self._detours.append(Detour(self._given, "generate", through_wrapper))
        if hasattr(self._model, "init_continuous_batching"):
            self._detours.append(Detour(self._model, "init_continuous_batching", _refuse_batches))
        # A model that is compiled meanwhile runs as it is: what LazyLLM does is no graph.
        if self._model is not self._decoder:
            self._detours.append(Detour(self._model, "forward", torch.compiler.disable(self._call)))
        self._detours.append(Detour(self._decoder, "forward", torch.compiler.disable(self._decode)))
        for index, layer in enumerate(self._layers):
            self._detours.append(Detour(layer, "forward", _layer_run(index, layer)))

    def _restore(self) -> None:
        for detour in reversed(self._detours):
            detour.remove()
        self._detours.clear()
        _set_attention(self._decoder.config, self._setup.attention.name)

    def _generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        check_inputs_own(self._model)
        given = by_name(generate, args, kwargs)
        check_ways(given, self._model.generation_config)
        _refuse_outside(given.get("past_key_values"))
        way = "generate" if given.get("position_ids") is None else _OWN_POSITIONS
        way = way if given.get("custom_generate") is None else _OWN_WAY
        outer = self._thread.generation, self._thread.ended
        self._thread.generation = self._thread.ended = None
        try:
            with self._traffic.enter("generate"), self._traffic.enter(way):
                return generate(*args, **kwargs)
        finally:
            self._thread.generation, self._thread.ended = outer

    def _criteria(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Ended:
        """The stopping criteria that `generate` makes."""
        self._thread.ended = Ended(make(*args, **kwargs))
        return self._thread.ended

    def _call(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The whole model's forward pass."""
        given = by_name(forward, args, kwargs)
        with self._traffic.enter("model"):
            # Guidance, within `generate`, asks for the logits of every token and for a cache, and reads the newest's.
            guided = self._traffic.inside("generate") and given.get("use_cache")
            check_logits(given, every_token=self._newest_only or bool(guided))
            check_flags(given, self._model.config)
            outer, self._thread.decoded = WITHIN.set(True), False
            try:
                output = forward(*args, **kwargs)
            finally:
                WITHIN.reset(outer)
            if not self._thread.decoded:
                raise LazyLLMError(
                    f"{type(self._model).__name__} did not run its {type(self._decoder).__name__}, the decoder that "
                    "LazyLLM found in it: this architecture is not supported"
                )
            return output

    def _decode(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The decoder's forward pass: one step of a generation."""
        kwargs = by_name(forward, args, kwargs)
        if not self._newest_only and not self._traffic.inside("model"):
            raise LazyLLMError(
                "the decoder was called by itself, for hidden states of every token: LazyLLM computes the newest "
                "token's alone, so call the whole model, or accept that with lazyllm.enable(..., newest_only=True)"
            )
        count, _ = size(kwargs)
        if (mask := kwargs.get("attention_mask")) is not None:
            window = getattr(self._decoder.config, "sliding_window", None)
            kwargs = {**kwargs, "attention_mask": without(mask, window)}
        check_flags(kwargs, self._decoder.config)
        first = next((stage.layer for stage in self.schedule.stages if stage.keep < 1), len(self._layers))
        # Of the last layer there is the newest token's output alone.
        check_arguments(kwargs, complete=min(first + 1, len(self._layers) - 1))
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
        with self._traffic.enter("decoder"):
            given = kwargs.get("past_key_values")
            generation = self._generation(given, count)
            with generation.step(kwargs, **self._asked(generation, kwargs)) as packed:
                if packed is not kwargs and "position_ids" not in inspect.signature(forward).parameters:
                    raise LazyLLMError(
                        f"{type(self._decoder).__name__} takes no position_ids, which tell the sequences of a batch "
                        "from their padding: generate one sequence at a time"
                    )
                cache = given if isinstance(given, LazyCache) else LazyCache.of(generation, given)
                begun = cache is not given or not generation.sequences[0].stats.steps
                if begun and self._thread.generation in (None, generation):
                    self._sequences = cache.sequences
                output = forward(**{**packed, "past_key_values": cache, "use_cache": True})
            return _newest(output, generation)

    def _asked(self, generation: Generation, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What `Generation.step` is told of a pass; what `generate` makes itself is known and not read."""
        generating = self._traffic.inside("generate") and not self._traffic.inside(_OWN_WAY)
        mask, positions, ended = kwargs.get("attention_mask"), kwargs.get("position_ids"), self._thread.ended
        mine = self._thread.generation in (None, generation)
        known = generating and mine
        grows = bool(known and self._thread.generation and generation.packing.columns)
        if grows:
            mask = None
        if known:
            self._thread.generation = generation
        # Positions of images, in height and width, have a dimension more.
        plain = isinstance(positions, torch.Tensor) and positions.ndim == 2
        counted = known and plain and not self._traffic.inside(_OWN_POSITIONS)
        count = len(generation.sequences)
        flags = ended.flags(count) if mine and ended is not None else [False] * count
        return {"mask": mask, "grows": grows, "counted": counted, "ended": flags}

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


def _check_selection(selection: object) -> None:
    if isinstance(selection, Selection):
        return
    if not isinstance(selection, type) or not issubclass(selection, Selection):
        raise LazyLLMError(f"selection must be a ranking such as lazyllm.Importance(queries=8), not {selection!r}")
    name = f"lazyllm.{selection.__name__}" if selection.__module__.startswith("lazyllm.") else selection.__name__
    if isabstract(selection):
        raise LazyLLMError(f"selection={name} is not a whole ranking: give an instance of a subclass with `observe`")
    raise LazyLLMError(f"selection={name} is a class: give an instance, {name}()")


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


def _layer_run(index: int, layer: nn.Module) -> Callable[..., Any]:
    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        step = CURRENT.get()
        # Outside a step the layer's own attention says what is the matter.
        return forward(*args, **kwargs) if step is None else step.run_layer(index, layer, forward, *args, **kwargs)

    return run


def _refuse_batches(*args: Any, **kwargs: Any) -> NoReturn:
    raise LazyLLMError("continuous batching is not supported: call generate with a batch of prompts")


def _set_attention(config: Any, implementation: str) -> None:
    config._attn_implementation = {"": implementation}  # "": its own, and not its sub-configs'


def enable(
    model: nn.Module,
    schedule: PruningSchedule | str | Iterable[tuple[int, float]],
    *,
    selection: Selection | None = None,
    newest_only: bool = False,
    record_positions: bool = False,
    record_importance: bool = False,
) -> Session:
    """Prune the prompt of everything `model` generates inside the `with` (LazyLLM, Fu et al. 2024).

    The weights are untouched; after the `with`, also after an exception, the model is what it was. Inside,
    `model.generate` works as ever, with one prompt or a left-padded batch of them, in any number of threads: a
    generation belongs to its cache, and goes on with it when it is given again (`past_key_values`). A forward pass
    with `logits_to_keep=1` yields the logits of the newest tokens, (sequences, 1, vocabulary). Leaving
    the `with` waits for what other threads are generating. In eager mode attention runs through SDPA, which never
    allocates the attention matrix.

    Args:
        model: a Hugging Face decoder-only model, or PEFT's wrapper of one.
        schedule: where tokens are pruned and how many stay: a `PruningSchedule`, text such as "10:0.7,20:0.5" or
            "33%:0.7,67%:0.5", or pairs such as [(10, 0.7), (20, 0.5)].
        selection: what ranks the tokens: `lazyllm.Importance()` by default, the paper's Eq. 1; with parts, such as
            `lazyllm.Importance(queries=8)`, another; `lazyllm.StaticSelection()` for the paper's static token pruning;
            or an instance of a subclass of `lazyllm.Selection`.
        newest_only: accept outputs of the newest token alone where the unmodified model gives those of every token:
            logits of a forward pass without `logits_to_keep=1`, (sequences, 1, vocabulary), and hidden states of a
            decoder without a language-modelling head, (sequences, 1, hidden).
        record_positions: also keep the active and computed positions of every step and layer in `stats`.
        record_importance: also keep the importance in every layer of prefilling in `stats`.

    Returns:
        A context manager with `stats`, the counts of the latest generation, `sequences`, those of each sequence of it,
        and `schedule`.

    Raises:
        LazyLLMError: the model, schedule or selection is not supported; raised later, inside the `with`, for inputs
            that are not.
    """
    ranking = Importance() if selection is None else selection
    return Session(model, schedule, ranking, newest_only, record_positions, record_importance)
