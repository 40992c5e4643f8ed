"""Which tokens go on at a stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from lazyllm.errors import LazyLLMError
from lazyllm.importance import most_important, newest_row
from lazyllm.tokens import Segment, TokenCache


class Selection(ABC):
    """Ranks the active tokens at the stages of one generation; another way of ranking is a subclass.

    Attributes:
        cache: what is computed, and which tokens take part where.
        single_stage: whether it works with one stage only.
        revives: whether a token that was left behind may go on in a later step.
        checked: whether what `survivors` returns is checked at every stage, which takes a read of the device each time.
            A subclass is, unless it says `class Mine(Selection, checked=False)`.
    """

    single_stage = False
    revives = True
    checked = True

    def __init_subclass__(cls, checked: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.checked = checked

    def __init__(self, cache: TokenCache) -> None:
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
        """Positions that go on after the segment, sorted, each once, int64 (k,), the newest among them.

        They are among the segment's active positions; without `revives`, those of earlier steps among those that
        have gone on before. A `checked` selection is held to this at every stage.
        """


def check_survivors(selection: Selection, survivors: object, segment: Segment) -> None:
    """Raise `LazyLLMError` unless `survivors` are what `Selection.survivors` promises."""
    name, newest = type(selection).__name__, selection.cache.total - 1

    def broken(what: str) -> LazyLLMError:
        return LazyLLMError(
            f"{name}.survivors after layer {segment.layers[-1]} {what}: it must return positions of active tokens, "
            f"sorted, each once, the newest ({newest}) last, as an int64 tensor"
        )

    if not isinstance(survivors, torch.Tensor) or survivors.dtype != torch.int64 or survivors.ndim != 1:
        raise broken(f"returned {described(survivors)}")
    behind = selection.cache.behind(segment, survivors) if survivors.numel() and not selection.revives else None
    if survivors.numel() and _in_order(survivors, segment, newest, behind):
        return
    given = survivors.tolist()
    active = range(newest + 1) if segment.active is None else set(segment.active.tolist())
    if newest not in given:
        raise broken("leaves out the newest token")
    if len(set(given)) < len(given):
        raise broken("has duplicates")
    if given != sorted(given):
        raise broken("is not sorted")
    if stray := [position for position in given if position not in active]:
        raise broken(f"lets position {stray[0]} go on, which is not active there")
    raise broken(f"revives position {given[behind.tolist().index(True)]}, though {name}.revives is False")


def _in_order(survivors: torch.Tensor, segment: Segment, newest: int, behind: torch.Tensor | None) -> bool:
    """Whether all is well with survivors, with one read of the device."""
    holds = [(survivors[1:] > survivors[:-1]).all(), survivors[-1] == newest, survivors[0] >= 0]
    if segment.active is not None:
        holds.append(torch.isin(survivors, segment.active).all())
    if behind is not None:
        holds.append(~behind.any())
    return bool(torch.stack(holds).all())


def described(value: object) -> str:
    """A value as a message names it that refuses it."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"


class DynamicSelection(Selection, checked=False):
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


class FrozenSelection(Selection, checked=False):
    """At one stage, in prefilling, for good: what is pruned never returns, generated tokens are never pruned."""

    single_stage = True
    revives = False

    def __init__(self, cache: TokenCache) -> None:
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


class StaticSelection(FrozenSelection, checked=False):
    """Static token pruning, a baseline of the paper: by the mean importance over layers 0 to the stage's."""

    def __init__(self, cache: TokenCache) -> None:
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
