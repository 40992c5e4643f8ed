"""What methods share that prune once on LazyLLM's engine."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from transformers import PreTrainedModel

import lazyllm
from lazybench.methods.checks import check_depth, one_stage
from lazybench.methods.on_engine import OnEngine


@dataclass
class OneStage(OnEngine):
    """Prune prompt tokens once, after one layer; they never return.

    Attributes:
        layer: the decoder layer after which to prune.
        keep: fraction of the prompt tokens that stay.
    """

    layer: int = 4
    keep: float = 0.5

    def __post_init__(self) -> None:
        self._schedule = one_stage(self.layer, self.keep)

    def check(self, model: PreTrainedModel) -> None:
        check_depth("method.layer", self._schedule, model)
        super().check(model)

    @property
    @abstractmethod
    def selection(self) -> type[lazyllm.FrozenSelection]:
        """What ranks the tokens."""

    def pruning_schedule(self, num_layers: int) -> lazyllm.PruningSchedule:
        """The one stage, whatever the model's depth."""
        return self._schedule
