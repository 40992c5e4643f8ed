"""Turns LazyLLM on for a model, and off again."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import isabstract
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import nn

from lazyllm import few_rows
from lazyllm.anatomy import check_same, dissect, rope_growth, rope_switch, windows
from lazyllm.attention import EnabledName, FusedAttention
from lazyllm.detour import Detour
from lazyllm.errors import LazyLLMError
from lazyllm.importance import Importance
from lazyllm.passes import Passes, layer_run
from lazyllm.row_by_row import through_wrapper, unwrapped
from lazyllm.schedule import PruningSchedule
from lazyllm.selection import Selection
from lazyllm.sequence import Setup
from lazyllm.stats import Stats, only


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
        self._newest_only = newest_only
        self._wanted = selection, record_positions, record_importance
        self._detours: list[Detour] = []
        self._passes: Passes | None = None

    @property
    def layers(self) -> nn.ModuleList:
        """The model's decoder layers."""
        return self._anatomy.layers

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
        if self._passes is None or not self._passes.sequences:
            raise LazyLLMError(
                "nothing has been generated under lazyllm.enable yet, so there are no stats: generate inside "
                "`with lazyllm.enable(...)`"
            )
        return self._passes.sequences

    def __enter__(self) -> Session:
        check_same(self._model, self._anatomy)
        config = self._anatomy.decoder.config
        reach = windows(config, len(self._anatomy.layers))
        rope = rope_switch(config), rope_growth(config)
        group = self._anatomy.group
        setup = Setup(self.schedule, FusedAttention(config), *rope, reach, group, *self._wanted)
        self._passes = Passes(self._model, self._anatomy, setup, self._newest_only)
        self._before = setup.attention.name, self._passes.rope_deltas.get()
        _set_attention(config, EnabledName(config._attn_implementation))
        try:
            self._detour(self._passes)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._passes is None:
            raise LazyLLMError("this session was never entered: use it as `with lazyllm.enable(...)`")
        if not self._detours:
            return  # left before
        try:
            quiet = self._passes.traffic.close()
        finally:
            self._restore()
        if not quiet and kind is None:
            raise LazyLLMError(
                "another thread generates under this `with` and waits for something else than the model, such as a "
                "streamer that is read after the `with`: read it inside"
            )

    def _detour(self, passes: Passes) -> None:
        if self._model.can_generate():
            self._detours.append(Detour(self._model, "generate", passes.generate))
            self._detours.append(Detour(self._model, "_get_stopping_criteria", passes.criteria))
        if self._given is not self._model:
            self._detours += [Detour(self._given, name, through_wrapper) for name in ("generate", "forward")]
        if hasattr(self._model, "init_continuous_batching"):
            self._detours.append(Detour(self._model, "init_continuous_batching", _refuse_batches))
        # A model that is compiled meanwhile runs as it is: what LazyLLM does is no graph.
        if self._model is not self._anatomy.decoder:
            self._detours.append(Detour(self._model, "forward", torch.compiler.disable(passes.call)))
        self._detours.append(Detour(self._anatomy.decoder, "forward", torch.compiler.disable(passes.decode)))
        for index, layer in enumerate(self._anatomy.layers):
            self._detours.append(Detour(layer, "forward", layer_run(index, layer)))
        if self.schedule.pruning:  # else results are to be the unmodified model's
            self._detours += few_rows.detours(self._model)

    def _restore(self) -> None:
        for detour in reversed(self._detours):
            detour.remove()
        self._detours.clear()
        attention, deltas = self._before
        _set_attention(self._anatomy.decoder.config, attention)
        self._passes.rope_deltas.set(deltas)


def _check_selection(selection: object) -> None:
    if isinstance(selection, Selection):
        return
    if not isinstance(selection, type) or not issubclass(selection, Selection):
        raise LazyLLMError(f"selection must be a ranking such as lazyllm.Importance(queries=8), not {selection!r}")
    name = f"lazyllm.{selection.__name__}" if selection.__module__.startswith("lazyllm.") else selection.__name__
    if isabstract(selection):
        raise LazyLLMError(f"selection={name} is not a whole ranking: give an instance of a subclass with `observe`")
    raise LazyLLMError(f"selection={name} is a class: give an instance, {name}()")


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
            "23%:0.6,50%:0.6", or pairs such as [(10, 0.7), (20, 0.5)].
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
