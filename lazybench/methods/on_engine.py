"""What methods share that answer a prompt in one generation of LazyLLM's engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transformers import PreTrainedModel

import lazyllm
from lazybench.methods.base import Method, Output
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt


class OnEngine(Method):
    """Prunes by a schedule and a way of ranking; a subclass sets `_schedule`, in `check` at the latest.

    Attributes:
        ranking: the importance that LazyLLM's own selection ranks by.
    """

    _schedule: lazyllm.PruningSchedule
    ranking: ClassVar[lazyllm.Importance] = lazyllm.Importance()

    @property
    def selection(self) -> type[lazyllm.Selection]:
        """What ranks the tokens."""
        return lazyllm.DynamicSelection

    @property
    def keep_1(self) -> Method:
        return NothingPruned("keep_1")

    def check(self, model: PreTrainedModel) -> None:
        lazyllm.enable(model, self._schedule, selection=self.selection)  # refuses what it could not prune

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        with lazyllm.enable(
            decode.model,
            self._schedule,
            selection=self.selection,
            importance=self.ranking,
            record_positions=decode.tracing,
        ) as lazy:
            tokens = decode(prompt.ids)
        return Output(tokens, lazy.stats.prompt_computed, lazy.stats)


@dataclass
class NothingPruned(OnEngine):
    """LazyLLM's engine where every token goes on: what a method on it costs before it prunes."""

    _schedule: ClassVar[lazyllm.PruningSchedule] = lazyllm.PruningSchedule()
