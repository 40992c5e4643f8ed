"""Turns LazyLLM on for a model, and off again."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.ranking import Selection
from lazyllm.core.schedule import PruningSchedule
from lazyllm.core.state import Setup
from lazyllm.core.stats import Stats, only
from lazyllm.hf.attention_interface import NAME, kernel_of
from lazyllm.hf.calls import ModelCalls, run_layer
from lazyllm.hf.images import RopeDeltas
from lazyllm.hf.patching import Patch
from lazyllm.hf.refusals import refuse_if
from lazyllm.hf.requests import read_schedule
from lazyllm.hf.support import check_attention, check_parts, dissect, modules_of, windows
from lazyllm.rankings.plus import Importance


class Session:
    """LazyLLM on one model: `lazyllm.enable` prunes the prompt of all that `model` generates inside the `with`.

    The weights are untouched; after the `with`, also after an exception, the model is what it was. Inside,
    `model.generate` works as ever, with one prompt or a left-padded batch of them, in any number of threads: a
    generation belongs to its cache, and goes on with it when it is given again (`past_key_values`). A call of
    `generate` may bring a schedule and a protection of its own, `generate(ids, schedule="50%:0.5", protect=[(0, 40)])`,
    a mask of all prompts, bool (sequences, tokens), among them, also as attributes of its `generation_config`; the
    empty schedule "" prunes nothing. A forward pass with `logits_to_keep=1` yields the logits of the newest tokens,
    (sequences, 1, vocabulary). A service without a `with` calls `start()` and `stop()`. In eager mode attention runs
    through SDPA, which never allocates the attention matrix.

    Args:
        model: a Hugging Face decoder-only model, or PEFT's wrapper of one.
        schedule: where tokens are pruned and how many stay: a `PruningSchedule`, text such as "10:0.7,20:0.5" or
            "23%:0.6,50%:0.6", or pairs such as [(10, 0.7), (20, 0.5)].
        selection: what ranks the tokens: `lazyllm.Importance()` by default, the paper's Eq. 1; with parts, such as
            `lazyllm.Importance(queries=8)`, another; `lazyllm.plus()` for `lazyllm+`; `lazyllm.StaticSelection()` for
            the paper's static token pruning; or an instance of a subclass of `lazyllm.Selection`.
        min_tokens: a prompt of fewer tokens is not pruned, and neither is a conversation that begins with it; where
            prompts come in chunks, the longest of them counts, padding included.
        protect: which tokens of each prompt always go on: a function of its ids, int64 (tokens,), padding included,
            which gives a mask, bool (tokens,), or spans such as [(0, 40)], each with a token of the prompt in it. They
            count toward what a stage keeps; where they are more, they all go on, which `stats.exceeded` tells. What was
            left behind before, by a ranking that revives nothing, stays there. See `lazyllm.template_tokens`.
        newest_only: accept outputs of the newest token alone where the unmodified model gives those of every token:
            logits of a forward pass without `logits_to_keep=1`, (sequences, 1, vocabulary), and hidden states of a
            decoder without a language-modelling head, (sequences, 1, hidden).
        record_positions: also keep the active and computed positions of every step and layer in `stats`.
        record_importance: also keep the importance in every layer of prefilling in `stats`.

    Attributes:
        schedule: the stages.
        layers: the model's decoder layers.

    Raises:
        LazyLLMError: the model, schedule or selection is not supported; raised later, inside the `with`, for inputs
            that are not.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: PruningSchedule | str | Iterable[tuple[int, float]],
        *,
        selection: Selection | None = None,
        min_tokens: int = 0,
        protect: Callable[[torch.Tensor], Any] | None = None,
        newest_only: bool = False,
        record_positions: bool = False,
        record_importance: bool = False,
    ) -> None:
        selection = Importance() if selection is None else selection
        refuse_if(not isinstance(selection, Selection), "selection_kind", selection=selection)
        selection.check()
        is_count = isinstance(min_tokens, Integral) and not isinstance(min_tokens, bool)
        refuse_if(not is_count or min_tokens < 0, "min_tokens", min_tokens=min_tokens)
        refuse_if(protect is not None and not callable(protect), "protect_function", kind=type(protect).__name__)
        # PEFT's wrapper has a `generate` that calls that of the model inside.
        inner = None if isinstance(model, PreTrainedModel) else getattr(model, "get_base_model", None)
        self._given: Any = model
        self._model: Any = model if inner is None else inner()
        self._anatomy = anatomy = dissect(self._model, newest_only, selection.for_good)
        self.layers = anatomy.layers
        self._windows = windows(anatomy.decoder.config, len(anatomy.layers))
        self.schedule = read_schedule(schedule, self._windows, selection)
        lacks = anatomy.processes is not None and not selection.parallel
        refuse_if(lacks, "heads_split", name=type(selection).__name__)
        self._protect, self._newest_only = protect, newest_only
        self._wanted = selection, min_tokens, record_positions, record_importance
        self._on: ExitStack | None = None  # what makes the model what it was, while LazyLLM is on
        self._calls: ModelCalls | None = None

    def __repr__(self) -> str:
        state = "never entered" if self._calls is None else "on" if self._on else "ended"
        return f"<LazyLLM on {type(self._model).__name__}, {self.schedule}: {state}>"

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
        """Counts of each sequence of the generation that began last; an output's `past_key_values` have their own."""
        refuse_if(self._calls is None, "never_entered")
        refuse_if(not self._calls.sequences, "no_stats")
        return self._calls.sequences

    def start(self) -> "Session":
        """Begin, as a `with` does; until `stop`, everything that the model generates is pruned.

        Raises:
            LazyLLMError: LazyLLM is on already, or the model has changed so that it cannot be.
        """
        anatomy, config = self._anatomy, self._anatomy.decoder.config
        check_attention(anatomy.decoder)
        check_parts(modules := modules_of(self._model))
        setup = Setup(self.schedule, kernel_of(config), self._windows, anatomy.processes, *self._wanted)
        self._calls = ModelCalls(self._model, anatomy, setup, RopeDeltas(modules), self._protect, self._newest_only)
        with ExitStack() as before:
            before.callback(self._calls.rope_deltas.set, self._calls.rope_deltas.get())
            before.callback(setattr, config, "_attn_implementation", {"": setup.kernel.name})
            config._attn_implementation = {"": NAME}  # "": its own, and not its sub-configs'
            for patched in self._methods(self._calls):
                before.callback(Patch(*patched).remove)
            self._on = before.pop_all()
        return self

    __enter__ = start

    def stop(self) -> None:
        """End, as a `with` does: the model is what it was. Calls in other threads are given a moment to return.

        Raises:
            LazyLLMError: it never began, or something is still under way in another thread, and gets an error there.
        """
        refuse_if(self._calls is None, "never_entered")
        before, self._on = self._on, None
        if before is None:
            return  # ended before
        with before:
            under_way = self._calls.under_way.close()
        refuse_if(under_way, "under_way", under_way=" and ".join(under_way))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self.stop()
        except LazyLLMError:
            if kind is None:  # else what went wrong first is said
                raise

    def _methods(self, calls: ModelCalls) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """The methods that LazyLLM stands in the way of: module, name, and what is called in its place."""
        model, decoder = self._model, self._anatomy.decoder
        # A model that is compiled meanwhile runs as it is: what LazyLLM does is no graph.
        yield decoder, "forward", torch.compiler.disable(calls.decode)
        for index, layer in enumerate(self.layers):
            yield layer, "forward", partial(run_layer, index, layer)
        if model is not decoder:
            yield model, "forward", torch.compiler.disable(calls.forward)
        if model.can_generate():
            yield model, "generate", calls.generate
            yield model, "prepare_inputs_for_generation", calls.prepare
            yield model, "_get_stopping_criteria", calls.criteria
            yield model, "init_continuous_batching", lambda *_, **__: refuse_if(True, "continuous_batching")
        for name in ("generate", "forward") if self._given is not model else ():
            yield self._given, name, _through_wrapper


enable = Session


def _through_wrapper(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`generate`, or `forward`, of PEFT's wrapper."""
    refuse_if(len(kwargs.get("adapter_names") or ()) > 1, "adapter_names")
    return method(*args, **kwargs)
