"""LazyLLM (Fu et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from transformers import PreTrainedModel

import lazyllm
from lazybench.errors import LazyBenchError, suggest
from lazybench.methods.checks import check_depth, naming
from lazybench.methods.on_engine import OnEngine

EQ1 = "eq1"
PAPER, PLUS = "lazyllm", "lazyllm+"
_DEEP = 1000  # layers; deep enough to read any schedule before the model's depth is known


@dataclass
class LazyLLM(OnEngine):
    """Progressive, dynamic pruning with an Aux Cache (paper, section 3.2).

    Attributes:
        schedule: `layer:keep` pairs as text or list; a layer may be a percentage of the depth. On the command
            line, where a comma outside brackets starts a sweep, `method.schedule=[10:0.7,20:0.5]`.
        importance: by what tokens are ranked: `eq1`, the paper's, or the parts of `lazyllm.Importance` that differ from
            it, such as `{queries: 8, pooling: 7}`. With another than the paper's the method is called `lazyllm+`.
    """

    schedule: str | list[str] = ""
    importance: Any = EQ1

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, str | int | list):
            raise LazyBenchError(f"method.schedule={self.schedule} is not layer:keep pairs, such as [10:0.7,20:0.5]")
        parts = self.schedule if isinstance(self.schedule, list) else [self.schedule]
        self.schedule = ",".join(" ".join(map(str, parts)).replace(",", " ").split())
        with naming("method.schedule"):
            if "%" not in self.schedule:
                self.schedule = lazyllm.PruningSchedule.parse(self.schedule).spec  # 0.60 is 0.6
            self.pruning_schedule(num_layers=_DEEP)
        self.ranking = parse_importance(self.importance, "method.importance", [EQ1])
        self.importance = self.ranking.changed or EQ1
        self.name = name_for(self.name, self.ranking)

    def pruning_schedule(self, num_layers: int) -> lazyllm.PruningSchedule:
        """The schedule on a model of `num_layers` decoder layers."""
        return lazyllm.PruningSchedule.parse(self.schedule, num_layers)

    def check(self, model: PreTrainedModel) -> None:
        with naming("method.schedule"):
            self._schedule = self.pruning_schedule(model.config.num_hidden_layers)
        check_depth("method.schedule", self._schedule, model)
        super().check(model)


def parse_importance(value: object, key: str, names: Sequence[str]) -> lazyllm.Importance:
    """The importance that a setting describes.

    Args:
        value: `eq1`, or parts of `lazyllm.Importance`.
        key: the setting's name, for messages.
        names: what it may be besides parts.

    Raises:
        LazyBenchError: neither `eq1` nor parts of `lazyllm.Importance`.
    """
    if value == EQ1:
        return lazyllm.Importance()
    if not isinstance(value, dict):
        parts = f"'{key}={{queries:8,pooling:7}}'"
        raise LazyBenchError(f"{key}={value} must be {', '.join(names)} or parts such as {parts}")
    known = [part.name for part in fields(lazyllm.Importance)]
    for part in value:
        if part not in known:
            raise LazyBenchError(f"{key}: there is no part {part!r}: {suggest(str(part), known)}")
    with naming(key):
        return lazyllm.Importance(**value)


def name_for(name: str, importance: lazyllm.Importance) -> str:
    """A method's name, which says whether it is LazyLLM as published."""
    if name not in (PAPER, PLUS):
        return name
    return PAPER if importance.is_eq1 else PLUS
