"""Which tokens go on at a stage."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from lazyllm.cache import LazyCache, Segment
from lazyllm.importance import most_important, newest_row


class Selection(ABC):
    """Ranks the active tokens at the stages of one generation; another way of ranking is a subclass.

    Attributes:
        cache: what is computed, and which tokens take part where.
        single_stage: whether it works with one stage only.
        revives: whether a token that was left behind may go on in a later step.
    """

    single_stage = False
    revives = True

    def __init__(self, cache: LazyCache) -> None:
        self.cache = cache

    @abstractmethod
    def wants(self, layer: int) -> bool:
        """Whether the queries and keys of `layer` are needed at this step."""

    @abstractmethod
    def observe(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, scaling: float, softcap: float | None
    ) -> None:
        """Take the queries and keys of a layer that was wanted.

        In prefilling both are the layer's active tokens in order of position. In a later step the rows are those
        computed now, and the keys stand where `cache.held` says, among them tokens that sit this step out:
        `segment.present` tells them apart, and `cache.by_position` puts importance in order.

        Args:
            layer: the layer under way.
            query: (1, heads, rows, head_dim), the newest token's query last.
            key: (1, kv_heads, n_keys, head_dim), those that attention gets.
            scaling: factor on the scores.
            softcap: where the model caps its scores, `softcap * tanh(score / softcap)`.
        """

    @abstractmethod
    def survivors(self, segment: Segment) -> torch.Tensor:
        """Positions that go on after the segment, sorted, int64 (k,), the newest among them."""


class DynamicSelection(Selection):
    """LazyLLM: at every step anew, by the newest token's attention in the stage's own layer."""

    def wants(self, layer: int) -> bool:
        segment = self.cache.segment_of[layer]
        return segment.stage is not None and layer == segment.layers[-1]

    def observe(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, scaling: float, softcap: float | None
    ) -> None:
        segment = self.cache.segment_of[layer]
        importance = newest_row(query, key, segment.present, scaling, softcap)
        self._importance = self.cache.by_position(segment, importance)

    def survivors(self, segment: Segment) -> torch.Tensor:
        return most_important(self._importance, segment.stage.kept(segment.n_active))


class FrozenSelection(Selection):
    """At one stage, in prefilling, for good: what is pruned never returns, generated tokens are never pruned."""

    single_stage = True
    revives = False

    def __init__(self, cache: LazyCache) -> None:
        super().__init__(cache)
        self._frozen: torch.Tensor | None = None

    def wants(self, layer: int) -> bool:
        segment = self.cache.segment_of[layer]
        return self.cache.prefilling and segment.stage is not None and layer == segment.layers[-1]

    @abstractmethod
    def choose(self, count: int) -> torch.Tensor:
        """The `count` prompt positions that go on, sorted, int64 (count,)."""

    def survivors(self, segment: Segment) -> torch.Tensor:
        if self.cache.prefilling:
            self._frozen = self.choose(segment.stage.kept(segment.n_active))
            return self._frozen
        generated = torch.arange(self.cache.prompt_length, self.cache.total, device=self._frozen.device)
        return torch.cat([self._frozen, generated])


class StaticSelection(FrozenSelection):
    """Static token pruning, a baseline of the paper: by the mean importance over layers 0 to the stage's."""

    def __init__(self, cache: LazyCache) -> None:
        super().__init__(cache)
        self._sum: torch.Tensor | None = None

    def wants(self, layer: int) -> bool:
        return self.cache.prefilling and self.cache.segment_of[layer].stage is not None

    def observe(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, scaling: float, softcap: float | None
    ) -> None:
        importance = newest_row(query, key, None, scaling, softcap)
        # The mean ranks as the sum does.
        self._sum = importance if self._sum is None else self._sum + importance

    def choose(self, count: int) -> torch.Tensor:
        return most_important(self._sum, count)
