"""Which tokens go on at a stage."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from lazyllm.cache import LazyCache, Segment
from lazyllm.importance import most_important


class Selection(ABC):
    """Ranks the active tokens at the stages of one generation."""

    def __init__(self, cache: LazyCache) -> None:
        self.cache = cache

    @abstractmethod
    def wants(self, layer: int) -> bool:
        """Whether the importance in `layer` is needed at this step."""

    @abstractmethod
    def observe(self, importance: torch.Tensor) -> None:
        """Take the importance (n_active,) of the layer under way, if it was wanted."""

    @abstractmethod
    def survivors(self, segment: Segment) -> torch.Tensor:
        """Indices into the segment's active tokens that go on, sorted, int64 (k,), the newest among them."""


class DynamicSelection(Selection):
    """LazyLLM: at every step anew, by the newest token's attention in the stage's own layer."""

    def wants(self, layer: int) -> bool:
        segment = self.cache.segment_of[layer]
        return segment.stage is not None and layer == segment.layers[-1]

    def observe(self, importance: torch.Tensor) -> None:
        self._importance = importance

    def survivors(self, segment: Segment) -> torch.Tensor:
        return most_important(self._importance, segment.stage.kept(segment.n_active))


class StaticSelection(Selection):
    """Static token pruning: once, in prefilling, by the mean over layers 0 to the stage's; then for good.

    Pruned tokens never return and generated tokens are never pruned.
    """

    def __init__(self, cache: LazyCache) -> None:
        super().__init__(cache)
        self._sum: torch.Tensor | None = None
        self._frozen: torch.Tensor | None = None

    def wants(self, layer: int) -> bool:
        return self.cache.prefilling and self.cache.segment_of[layer].stage is not None

    def observe(self, importance: torch.Tensor) -> None:
        # The mean ranks as the sum does.
        self._sum = importance if self._sum is None else self._sum + importance

    def survivors(self, segment: Segment) -> torch.Tensor:
        if self.cache.prefilling:
            self._frozen = most_important(self._sum, segment.stage.kept(segment.n_active))
            return self._frozen
        generated = torch.arange(self.cache.prompt_length, self.cache.total, device=self._frozen.device)
        return torch.cat([self._frozen, generated])
