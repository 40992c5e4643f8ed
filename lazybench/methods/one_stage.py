"""What methods share that prune once on LazyLLM's engine."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from transformers import PreTrainedModel

import lazyllm
from lazybench.decoding import Decoder
from lazybench.methods.base import Method, Output
from lazybench.prompts import Prompt


@dataclass
class OneStage(Method):
    """Prune prompt tokens once, after one layer; they never return.

    Attributes:
        layer: the decoder layer after which to prune.
        keep: fraction of the prompt tokens that stay.
    """

    layer: int = 4
    keep: float = 0.5

    def __post_init__(self) -> None:
        self._schedule = lazyllm.PruningSchedule([(self.layer, self.keep)])

    @property
    @abstractmethod
    def selection(self) -> type[lazyllm.FrozenSelection]:
        """What ranks the tokens."""

    def pruning_schedule(self, num_layers: int) -> lazyllm.PruningSchedule:
        """The one stage, whatever the model's depth."""
        return self._schedule

    def prepare(self, model: PreTrainedModel) -> None:
        lazyllm.enable(model, self._schedule, selection=self.selection)  # refuses what it could not prune

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        with lazyllm.enable(
            decode.model, self._schedule, selection=self.selection, record_positions=decode.tracing
        ) as lazy:
            tokens = decode(prompt.ids)
        return Output(tokens, lazy.stats.prompt_computed, lazy.stats)
