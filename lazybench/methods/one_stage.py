"""What methods share that prune once on LazyLLM's engine."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import lazyllm
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
        self._schedule = lazyllm.PruningSchedule([(self.layer, self.keep)])

    @property
    @abstractmethod
    def selection(self) -> type[lazyllm.FrozenSelection]:
        """What ranks the tokens."""

    def pruning_schedule(self, num_layers: int) -> lazyllm.PruningSchedule:
        """The one stage, whatever the model's depth."""
        return self._schedule
