"""What methods share that prune at the stages of a schedule that can be set."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from lazybench.errors import LazyBenchError
from lazybench.methods.on_engine import OnEngine


@dataclass
class Staged(OnEngine):
    """Prunes by a schedule that can be set: a subclass sets the ranking, and is a whole method.

    Attributes:
        schedule: `layer:keep` pairs as text or list; a layer may be a percentage of the depth. On the command
            line, where a comma outside brackets starts a sweep, `method.schedule=[10:0.7,20:0.5]`.
    """

    schedule: str | list[str] = ""

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

    def pruning(self, share: float) -> Self:
        """The same stages, each keep to the same power."""
        return self.to_power(math.log(1 - share) / math.log(self.left))

    def to_power(self, power: float) -> Self:
        """The same stages, each keep to this power: above 1 prunes more."""
        return replace(self, schedule=",".join(f"{layer}:{round(keep**power, 4)}" for layer, keep in self._stages))

    @property
    def _stages(self) -> list[tuple[str, float]]:
        return [(layer, float(keep)) for layer, keep in (part.split(":") for part in self.schedule.split(","))]
