"""Turns LazyLLM on for a model, and off again."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn
from weakref import WeakSet

import torch
from torch import nn
from transformers import DynamicCache

from lazyllm.anatomy import ENABLED, dissect, rope_switch, windows
from lazyllm.attention import CURRENT, NAME, FusedAttention
from lazyllm.cache import LazyCache
from lazyllm.detour import Detour, by_name
from lazyllm.errors import LazyLLMError
from lazyllm.generation import Generation, Setup
from lazyllm.inputs import check_tensors
from lazyllm.schedule import PruningSchedule
from lazyllm.selection import DynamicSelection, Selection
from lazyllm.stats import Stats
from lazyllm.traffic import Traffic
from lazyllm.variants import Importance, selection_by

_PER_TOKEN = ("attentions", "hidden_states")
# What a decoder may be given a tensor for: it uses these up before its first layer, or TokenArguments knows them.
_KNOWN_TENSORS = {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids", "cache_position"}


class Session:
    """LazyLLM on one model, from `with` to its end; made by `lazyllm.enable`."""

    def __init__(
        self,
        model: nn.Module,
        schedule: PruningSchedule,
        selection: type[Selection],
        importance: Importance,
        newest_only: bool,
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
        anatomy = dissect(model, newest_only)
        schedule.check(len(anatomy.layers))
        if selection.single_stage and len(schedule.stages) != 1:
            raise LazyLLMError(
                f"{selection.__name__} prunes at one stage, not at the {len(schedule.stages)} of {schedule.spec!r}"
            )
        self.schedule = schedule
        self._model = model
        self._decoder = anatomy.decoder
        self._layers = anatomy.layers
        self._selection = selection if importance.is_eq1 else selection_by(importance)
        self._newest_only = newest_only
        self._record_positions = record_positions
        self._record_importance = record_importance
        self._detours: list[Detour] = []
        self._replaced: WeakSet[DynamicCache] = WeakSet()
        self._stats: Stats | None = None

    @property
    def stats(self) -> Stats:
        """Counts of the generation that began last; `past_key_values.stats` of an output are those of its own.

        Raises:
            LazyLLMError: nothing has been generated yet.
        """
        if self._stats is None:
            raise LazyLLMError("nothing has been generated under lazyllm.enable yet, so there are no stats")
        return self._stats

    def __enter__(self) -> Session:
        config = self._decoder.config
        if config._attn_implementation == NAME:
            raise LazyLLMError(ENABLED)
        self._setup = Setup(
            self.schedule,
            len(self._layers),
            FusedAttention(config),
            self._selection,
            rope_switch(config),
            windows(config, len(self._layers)),
            self._record_positions,
            self._record_importance,
        )
        self._traffic = Traffic()
        _set_attention(config, NAME)
        try:
            self._detour()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._traffic.close()
        finally:
            self._restore()

    def _detour(self) -> None:
        if self._model.can_generate():
            self._detours.append(Detour(self._model, "generate", self._generate))
        if hasattr(self._model, "init_continuous_batching"):
            self._detours.append(Detour(self._model, "init_continuous_batching", _refuse_batches))
        if self._model is not self._decoder:
            self._detours.append(Detour(self._model, "forward", self._call))
        self._detours.append(Detour(self._decoder, "forward", self._decode))
        for index, layer in enumerate(self._layers):
            self._detours.append(Detour(layer, "forward", _layer_run(index)))

    def _restore(self) -> None:
        for detour in reversed(self._detours):
            detour.remove()
        self._detours.clear()
        _set_attention(self._decoder.config, self._setup.attention.name)

    def _generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = "generate" if kwargs.get("position_ids") is None else "generate with positions"
        with self._traffic.enter("generate"), self._traffic.enter(given):
            return generate(*args, **kwargs)

    def _call(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The whole model's forward pass."""
        with self._traffic.enter("model"):
            self._check_outputs(by_name(forward, args, kwargs))
            return forward(*args, **kwargs)

    def _check_outputs(self, kwargs: dict[str, Any]) -> None:
        """Refuse outputs of tokens that LazyLLM does not compute."""
        wanted, new = kwargs.get("logits_to_keep", 0), _new_tokens(kwargs)
        # What `generate` asks for it reads at the newest token alone, and some models cannot be asked for less.
        everything = new > 1 and not self._newest_only and not self._traffic.inside("generate")
        if isinstance(wanted, torch.Tensor) or (wanted > 1 and new > 1) or kwargs.get("labels") is not None:
            raise LazyLLMError(
                "logits of more than the newest token were asked for, as assisted decoding and losses need: LazyLLM "
                "computes the newest token's alone"
            )
        if wanted == 0 and everything:
            raise LazyLLMError(
                "logits of every token were asked for, of which LazyLLM computes the newest token's alone: pass "
                "logits_to_keep=1, or accept that with lazyllm.enable(..., newest_only=True)"
            )
        config = self._model.config
        if any(kwargs.get(f"output_{what}") or getattr(config, f"output_{what}", False) for what in _PER_TOKEN):
            raise LazyLLMError(
                "output_attentions and output_hidden_states are of every token in every layer: LazyLLM does not "
                "compute them; record_positions=True tells what it does"
            )

    def _decode(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The decoder's forward pass: one step of a generation."""
        kwargs = by_name(forward, args, kwargs)
        if not self._newest_only and not self._traffic.inside("model"):
            raise LazyLLMError(
                "the decoder was called by itself, for hidden states of every token: LazyLLM computes the newest "
                "token's alone, so call the whole model, or accept that with lazyllm.enable(..., newest_only=True)"
            )
        if self._model is self._decoder:
            self._check_outputs({**kwargs, "logits_to_keep": 1})
        new = _new_tokens(kwargs)
        if kwargs.get("use_cache") is False:
            raise LazyLLMError("use_cache=False recomputes everything at each step: LazyLLM needs use_cache=True")
        if self._layers[0].training and getattr(self._layers[0], "gradient_checkpointing", False):
            raise LazyLLMError(
                "gradient checkpointing is on and leaves no keys and values: call model.eval() before generating"
            )
        if unknown := sorted(
            name for name, value in kwargs.items() if name not in _KNOWN_TENSORS and _holds_tensor(value)
        ):
            raise LazyLLMError(
                f"the decoder takes {', '.join(unknown)}, as for images, which LazyLLM does not know how to prune: "
                "it prunes text"
            )
        with self._traffic.enter("decoder"):
            cache = self._cache_for(kwargs.get("past_key_values"))
            tokens = cache.generation.tokens
            generating, positions = self._traffic.inside("generate"), kwargs.get("position_ids")
            if generating and not self._traffic.inside("generate with positions") and _counted(positions):
                positions = None  # `generate` counted them from the mask
            # Within `generate` the mask and the positions of later tokens follow from the prompt's.
            if tokens.prefilling or not generating:
                check_tensors(tokens, new, kwargs.get("attention_mask"), positions)
            with cache.generation.step(new):
                return forward(**{**kwargs, "past_key_values": cache, "use_cache": True})

    def _cache_for(self, cache: Any) -> LazyCache:
        """The cache of the generation that goes on, or of a new one."""
        if isinstance(cache, LazyCache):
            if cache.generation.setup is not self._setup:
                raise LazyLLMError(
                    "this cache is from an earlier generation or of another model: a generation stays within one "
                    "`with` of lazyllm.enable, from its prompt on"
                )
            return cache
        empty = type(cache) is DynamicCache and not cache.offloading and cache.get_seq_length() == 0
        if cache is not None and not empty:
            raise LazyLLMError(
                f"a {type(cache).__name__} from outside is not supported: LazyLLM keeps a cache of its own, so leave "
                "out past_key_values and cache_implementation"
            )
        if cache is not None:
            if cache in self._replaced:
                raise LazyLLMError(
                    "this DynamicCache was given to an earlier pass and is still empty, since LazyLLM keeps a cache of "
                    "its own: go on with past_key_values of that pass's output, or leave it out for a new prompt"
                )
            self._replaced.add(cache)
        started = LazyCache(Generation(self._setup))
        self._stats = started.stats
        return started


def _new_tokens(kwargs: dict[str, Any]) -> int:
    """Number of tokens in a forward pass's input."""
    tokens = kwargs.get("inputs_embeds")
    if tokens is None:
        tokens = kwargs.get("input_ids")
    if not isinstance(tokens, torch.Tensor) or tokens.ndim < 2 or tokens.shape[1] < 1:
        raise LazyLLMError("the model was called without input_ids or inputs_embeds of shape (1, tokens)")
    if tokens.shape[0] != 1:
        raise LazyLLMError(
            f"{tokens.shape[0]} sequences at once: LazyLLM generates one sequence at a time, without beams or "
            "num_return_sequences"
        )
    return tokens.shape[1]


def _counted(positions: Any) -> bool:
    """Whether positions are one number a token, not those in an image's height and width."""
    return isinstance(positions, torch.Tensor) and positions.ndim == 2


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensor, value)))


def _layer_run(index: int) -> Callable[..., Any]:
    """What runs decoder layer `index` in a step of LazyLLM's."""

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        step = CURRENT.get()
        # Outside a step the layer's own attention says what is the matter.
        return forward(*args, **kwargs) if step is None else step.run_layer(index, forward, *args, **kwargs)

    return run


def _refuse_batches(*args: Any, **kwargs: Any) -> NoReturn:
    raise LazyLLMError("continuous batching is not supported: call generate, one sequence at a time")


def _set_attention(config: Any, implementation: str) -> None:
    """Name the attention of `config` itself and leave its sub-configs alone."""
    config._attn_implementation = {"": implementation}


def enable(
    model: nn.Module,
    schedule: PruningSchedule,
    *,
    selection: type[Selection] = DynamicSelection,
    importance: Importance | None = None,
    newest_only: bool = False,
    record_positions: bool = False,
    record_importance: bool = False,
) -> Session:
    """Prune the prompt of everything `model` generates inside the `with` (LazyLLM, Fu et al. 2024).

    The weights are untouched; after the `with`, also after an exception, the model is what it was. Inside,
    `model.generate` works as ever for one sequence at a time, in any number of threads: a generation belongs to its
    cache. A forward pass with `logits_to_keep=1` yields the logits of the newest token, (1, 1, vocabulary). Leaving
    the `with` waits for what other threads are generating. In eager mode attention runs through SDPA, which never
    allocates the attention matrix.

    Args:
        model: a Hugging Face decoder-only model.
        schedule: where tokens are pruned and how many stay.
        selection: what ranks the tokens; LazyLLM's own by default, `lazyllm.StaticSelection` for the paper's static
            token pruning, or a subclass of `lazyllm.Selection`.
        importance: by what LazyLLM's own selection ranks them; Eq. 1 by default, the paper's.
        newest_only: accept outputs of the newest token alone where the unmodified model gives those of every token:
            logits of a forward pass without `logits_to_keep=1`, (1, 1, vocabulary), and hidden states of a decoder
            without a language-modelling head, (1, 1, hidden).
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
        newest_only,
        record_positions,
        record_importance,
    )
