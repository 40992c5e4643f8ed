"""LazyLLM (Fu et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import lazyllm
from lazybench.errors import LazyBenchError, suggest
from lazybench.methods.checks import naming
from lazybench.methods.on_engine import OnEngine
from lazybench.model.instance import make

EQ1 = "eq1"
PAPER, PLUS = "lazyllm", "lazyllm+"


@dataclass
class LazyLLM(OnEngine):
    """Progressive, dynamic pruning with an Aux Cache (paper, section 3.2).

    Attributes:
        schedule: `layer:keep` pairs as text or list; a layer may be a percentage of the depth. On the command
            line, where a comma outside brackets starts a sweep, `method.schedule=[10:0.7,20:0.5]`.
        importance: by what tokens are ranked: `eq1`, the paper's, or the parts of `lazyllm.Importance` that differ from
            it, such as `{queries: 8, pooling: 7}`; a subclass of it is named by `_target_`. With another than the
            paper's the method is called `lazyllm+`.
    """

    schedule: str | list[str] = ""
    importance: Any = EQ1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.selection = parse_importance(self.importance, "method.importance", [EQ1])
        self.importance = self.selection.changed or EQ1
        if self.name in (PAPER, PLUS):
            self.name = PAPER if self.selection.is_eq1 else PLUS

    @property
    def left(self) -> float:
        """The fraction of the prompt's tokens that all stages leave.

        Raises:
            LazyBenchError: they leave all.
        """
        left = math.prod(keep for _, keep in self._stages)
        if left == 1:
            raise LazyBenchError(f"method.schedule={self.schedule} prunes nothing: give stages that do")
        return left

    def pruning(self, share: float) -> LazyLLM:
        """The same stages, each keep to the same power."""
        return self.to_power(math.log(1 - share) / math.log(self.left))

    def to_power(self, power: float) -> LazyLLM:
        """The same stages, each keep to this power: above 1 prunes more."""
        return replace(self, schedule=",".join(f"{layer}:{round(keep**power, 4)}" for layer, keep in self._stages))

    @property
    def _stages(self) -> list[tuple[str, float]]:
        return [(layer, float(keep)) for layer, keep in (part.split(":") for part in self.schedule.split(","))]


def parse_importance(value: object, key: str, names: Sequence[str]) -> lazyllm.Importance:
    """The importance that the setting `key` describes; `names` are what it may be besides parts, for messages.

    The value is `eq1`, parts of `lazyllm.Importance`, or those of a subclass and `_target_`, its name.
    """
    if isinstance(value, dict) and "_target_" in value:
        value = make(key, value, "a subclass of lazyllm.Importance")
    if isinstance(value, lazyllm.Importance):
        return value
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
