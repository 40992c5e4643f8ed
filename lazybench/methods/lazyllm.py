"""LazyLLM (Fu et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

import lazyllm
from lazybench.errors import LazyBenchError
from lazybench.methods.checks import check_depth, naming
from lazybench.methods.on_engine import OnEngine

_DEEP = 1000  # layers; deep enough to read any schedule before the model's depth is known


@dataclass
class LazyLLM(OnEngine):
    """Progressive, dynamic pruning with an Aux Cache (paper, section 3.2).

    Attributes:
        schedule: `layer:keep` pairs as text or list; a layer may be a percentage of the depth. On the command
            line, where a comma outside brackets starts a sweep, `method.schedule=[10:0.7,20:0.5]`.
    """

    schedule: str | list[str] = ""

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, str | int | list):
            raise LazyBenchError(f"method.schedule={self.schedule} is not layer:keep pairs, such as [10:0.7,20:0.5]")
        parts = self.schedule if isinstance(self.schedule, list) else [self.schedule]
        self.schedule = ",".join(" ".join(map(str, parts)).replace(",", " ").split())
        with naming("method.schedule"):
            if "%" not in self.schedule:
                self.schedule = lazyllm.PruningSchedule.parse(self.schedule).spec  # 0.60 is 0.6
            self.pruning_schedule(num_layers=_DEEP)

    def pruning_schedule(self, num_layers: int) -> lazyllm.PruningSchedule:
        """The schedule on a model of `num_layers` decoder layers."""
        return lazyllm.PruningSchedule.parse(self.schedule, num_layers)

    def check(self, model: PreTrainedModel) -> None:
        with naming("method.schedule"):
            self._schedule = self.pruning_schedule(model.config.num_hidden_layers)
        check_depth("method.schedule", self._schedule, model)
        super().check(model)
