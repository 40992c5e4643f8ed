"""What methods share that prune once on LazyLLM's engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import lazyllm
from lazybench.methods.checks import one_stage
from lazybench.methods.on_engine import OnEngine


@dataclass
class OneStage(OnEngine):
    """Prune prompt tokens once, after one layer; a subclass sets `selection`, and by that whether they may return.

    Attributes:
        layer: the decoder layer after which to prune.
        keep: fraction of the prompt tokens that stay.
    """

    _set_by: ClassVar[str] = "method.layer"

    layer: int = 4
    keep: float = 0.5

    def __post_init__(self) -> None:
        one_stage(self.layer, self.keep)

    @property
    def schedule(self) -> lazyllm.PruningSchedule:
        """The one stage."""
        return one_stage(self.layer, self.keep)
