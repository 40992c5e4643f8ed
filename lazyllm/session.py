"""Turns LazyLLM on for a model, and off again."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.utils import ModelOutput

from lazyllm.anatomy import dissect, rope_switch
from lazyllm.attention import CURRENT, NAME, FusedAttention
from lazyllm.cache import LazyCache, partition
from lazyllm.errors import LazyLLMError
from lazyllm.generation import Generation
from lazyllm.schedule import PruningSchedule
from lazyllm.selection import DynamicSelection, Selection
from lazyllm.stats import Stats
from lazyllm.variants import Importance, selection_by

_PER_TOKEN = ("attentions", "hidden_states")


class Session:
    """LazyLLM on one model, from `with` to its end; made by `lazyllm.enable`."""

    def __init__(
        self,
        model: nn.Module,
        schedule: PruningSchedule,
        selection: type[Selection],
        importance: Importance,
        record_positions: bool,
        record_importance: bool,
    ) -> None:
        if not isinstance(schedule, PruningSchedule):
            raise LazyLLMError(f"schedule must be a lazyllm.PruningSchedule, not {type(schedule).__name__}")
        if not (isinstance(selection, type) and issubclass(selection, Selection)):
            raise LazyLLMError(f"selection must be a subclass of lazyllm.Selection, not {selection!r}")
        if not isinstance(importance, Importance):
            raise LazyLLMError(f"importance must be a lazyllm.Importance, not {type(importance).__name__}")
        if not importance.is_eq1 and selection is not DynamicSelection:
            raise LazyLLMError(f"importance is LazyLLM's own ranking: {selection.__name__} has another")
        anatomy = dissect(model)
        schedule.check(len(anatomy.layers))
        self._rope_switch = rope_switch(anatomy.decoder.config)
        if selection.single_stage and len(schedule.stages) != 1:
            raise LazyLLMError(
                f"{selection.__name__} prunes at one stage, not at the {len(schedule.stages)} of {schedule.spec!r}"
            )
        self.schedule = schedule
        self._model = model
        self._decoder = anatomy.decoder
        self._layers = anatomy.layers
        self._selection = selection if importance.is_eq1 else selection_by(importance)
        self._record_positions = record_positions
        self._record_importance = record_importance
        self._hooks: list[Any] = []
        self._implementation = ""
        self._attention: FusedAttention | None = None
        self._generation: Generation | None = None
        self._stats: Stats | None = None
        self._busy: int | None = None  # the thread whose forward pass is under way

    @property
    def stats(self) -> Stats:
        """Counts of the latest generation.

        Raises:
            LazyLLMError: nothing has been generated yet.
        """
        if self._stats is None:
            raise LazyLLMError("nothing has been generated under lazyllm.enable yet, so there are no stats")
        return self._stats

    def __enter__(self) -> Session:
        config = self._decoder.config
        if config._attn_implementation == NAME:
            raise LazyLLMError("LazyLLM is already enabled on this model: leave the first `with` before the next")
        self._implementation = config._attn_implementation
        self._attention = FusedAttention(config)
        _set_attention(config, NAME)
        try:
            self._hook()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        last, self._generation = self._generation, None  # its keys and values may go
        if kind is None and last is not None:
            last.check_padding()

    def _hook(self) -> None:
        decoder = self._decoder
        self._hooks.append(self._model.register_forward_pre_hook(_before_model, with_kwargs=True))
        self._hooks.append(decoder.register_forward_pre_hook(self._before_decoder, with_kwargs=True))
        self._hooks.append(decoder.register_forward_hook(self._after_decoder, always_call=True))
        ends = {segment.layers[-1] for segment in partition(self.schedule, len(self._layers))}
        for index, layer in enumerate(self._layers):
            before, after = _layer_hooks(index)
            self._hooks.append(layer.register_forward_pre_hook(before, with_kwargs=True))
            if index in ends:
                self._hooks.append(layer.register_forward_hook(after))

    def _restore(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._busy = None
        CURRENT.set(None)  # a forward pass that was interrupted has left it
        _set_attention(self._decoder.config, self._implementation)

    def _before_decoder(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        tokens = kwargs.get("inputs_embeds")
        if tokens is None:
            tokens = args[0] if args else kwargs.get("input_ids")
        if tokens is None or tokens.ndim < 2:
            raise LazyLLMError("the model was called without input_ids or inputs_embeds of shape (1, tokens)")
        if tokens.shape[0] != 1:
            raise LazyLLMError(
                f"{tokens.shape[0]} sequences at once: LazyLLM generates one sequence at a time, without beams or "
                "num_return_sequences"
            )
        if kwargs.get("use_cache") is False:
            raise LazyLLMError("use_cache=False recomputes everything at each step: LazyLLM needs use_cache=True")
        if self._busy not in (None, threading.get_ident()):
            raise LazyLLMError("another thread is generating with this model: LazyLLM runs one generation at a time")
        generation = self._generation_for(kwargs.get("past_key_values"))
        generation.begin_step(tokens.shape[1], kwargs.get("attention_mask"), self._rope_switch)
        self._busy = threading.get_ident()
        CURRENT.set(generation)
        return args, {**kwargs, "past_key_values": generation.cache, "use_cache": True}

    def _generation_for(self, cache: Any) -> Generation:
        """The generation that `cache` belongs to: a new one for an empty cache, else the one under way."""
        if isinstance(cache, LazyCache):
            if self._generation is None or cache is not self._generation.cache:
                raise LazyLLMError(
                    "this cache is not that of the generation under way, but from an earlier generation or one beside "
                    "it, as for guidance: LazyLLM runs one at a time, each from its prompt"
                )
            return self._generation
        empty = type(cache) is DynamicCache and not cache.offloading and cache.get_seq_length() == 0
        if cache is not None and not empty:
            raise LazyLLMError(
                f"a {type(cache).__name__} from outside is not supported: LazyLLM keeps a cache of its own, so leave "
                "out past_key_values and cache_implementation"
            )
        if self._generation is not None:
            self._generation.check_padding()
        self._generation = Generation(
            self.schedule,
            len(self._layers),
            self._attention,
            self._selection,
            self._record_positions,
            self._record_importance,
        )
        self._stats = self._generation.stats
        return self._generation

    def _after_decoder(self, decoder: nn.Module, args: tuple[Any, ...], output: ModelOutput | None) -> None:
        generation = CURRENT.get()
        CURRENT.set(None)
        self._busy = None
        if output is None:
            self._generation = None  # a pass that broke off has left its cache half-written
        else:
            generation.end_step()


def _before_model(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    wanted = kwargs.get("logits_to_keep", 1)
    if isinstance(wanted, torch.Tensor) or wanted > 1 or kwargs.get("labels") is not None:
        raise LazyLLMError(
            "logits of more than the newest token were asked for, as assisted decoding and losses need: LazyLLM "
            "computes the newest token's alone"
        )

    if any(kwargs.get(f"output_{what}") or getattr(model.config, f"output_{what}", False) for what in _PER_TOKEN):
        raise LazyLLMError(
            "output_attentions and output_hidden_states are of every token in every layer: LazyLLM does not compute "
            "them; record_positions=True tells what it does"
        )


def _layer_hooks(index: int) -> tuple[Any, Any]:
    def before(
        layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return CURRENT.get().before_layer(layer, index, args, kwargs)

    def after(layer: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return CURRENT.get().after_layer(index, output)
        return (CURRENT.get().after_layer(index, output[0]), *output[1:])

    return before, after


def _set_attention(config: Any, implementation: str) -> None:
    """Name the attention of `config` itself and leave its sub-configs alone."""
    config._attn_implementation = {"": implementation}


def enable(
    model: nn.Module,
    schedule: PruningSchedule,
    *,
    selection: type[Selection] = DynamicSelection,
    importance: Importance | None = None,
    record_positions: bool = False,
    record_importance: bool = False,
) -> Session:
    """Prune the prompt of everything `model` generates inside the `with` (LazyLLM, Fu et al. 2024).

    The weights are untouched; after the `with`, also after an exception, the model is what it was. Inside,
    `model.generate` works as ever for one sequence at a time, and a forward pass yields the logits of the
    newest token alone, (1, 1, vocabulary). In eager mode attention runs through SDPA, which never allocates
    the attention matrix.

    Args:
        model: a Hugging Face decoder-only model.
        schedule: where tokens are pruned and how many stay.
        selection: what ranks the tokens; LazyLLM's own by default, `lazyllm.StaticSelection` for the paper's static
            token pruning, or a subclass of `lazyllm.Selection`.
        importance: by what LazyLLM's own selection ranks them; Eq. 1 by default, the paper's.
        record_positions: also keep the active and computed positions of every step and layer in `stats`.
        record_importance: also keep the importance in every layer of prefilling in `stats`.

    Returns:
        A context manager with `stats`, the counts of the latest generation, and `schedule`.

    Raises:
        LazyLLMError: the model or the schedule is not supported; raised later, inside the `with`, for inputs
            that are not.
    """
    return Session(
        model,
        schedule,
        selection,
        Importance() if importance is None else importance,
        record_positions,
        record_importance,
    )
