"""Rankings that choose once, in prefilling: the paper's static token pruning, and others that are built on it."""

from __future__ import annotations

import torch

from lazyllm.core.importance import newest_row
from lazyllm.core.ranking import Selection


class FrozenSelection(Selection, checked=False, parallel=True):
    """At one stage, in the first pass, for good: what it prunes never returns, and no later token is pruned."""

    single_stage = True
    revives = False
    for_good = True


class StaticSelection(FrozenSelection, checked=False, parallel=True):
    """Static token pruning, a baseline of the paper: by the mean importance over layers 0 to the stage's."""

    _first: int | None = None  # the first layer that attends

    def wants(self, layer: int) -> bool:
        return self.cache.group_of[layer].stage is not None

    def observe(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, scaling: float, softcap: float | None
    ) -> None:
        importance = newest_row(query, key, self.seen(layer), scaling, softcap, self.sinks)
        # The mean ranks as the sum does.
        self._first = layer if self._first is None else self._first
        self.importance = importance if layer == self._first else self.importance.to(importance.device) + importance

    def survivors(self, layer: int, count: int) -> torch.Tensor:
        self.importance = self.over_processes(self.importance)
        return super().survivors(layer, count)
