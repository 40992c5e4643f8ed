"""Ways to weigh tokens other than the paper's Eq. 1, each a part that can be switched on by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import nn

from lazyllm.errors import LazyLLMError
from lazyllm.importance import attention_on, most_important
from lazyllm.selection import DynamicSelection, Selection
from lazyllm.tokens import Segment, TokenCache

_HEADS = ("mean", "max")
# Above any importance there can be, and times a position still exact.
_PROTECTED = float(1 << 40)


@dataclass(frozen=True)
class Importance:
    """How much the next token needs each token; without arguments it is Eq. 1, `eq1`.

    With the attention probability `a[h, q, j]`, (heads, queries, tokens), of query `q` on token `j` in head `h` of the
    stage's layer, softmax over the active tokens at or before the query:

        importance[j] = pool over j of  max over layers of  reduce over h of  mean over q of  a[h, q, j] * w[h, j]

    Where the tokens that always go on are more than the stage keeps, the newest of them do. Whatever is not Eq. 1 is
    not LazyLLM as published: reports call it `lazyllm+`.

    Attributes:
        queries: `q` runs over the last so many queries of the layer, not the newest token's alone; their own tokens
            always go on. In decoding the newest query joins and the oldest leaves. One query is noisy; those before it
            ask for much the same (SnapKV, Li et al. 2024, arXiv 2404.14469).
        pooling: a token's importance is the mean over so many neighbouring positions, an odd number, of those that
            are active: what surrounds a needed token stays with it (SnapKV; FastKV, Jo et al. 2025, arXiv 2502.01068).
        heads: `mean` over the query heads, or `max`: a token that a single head needs goes on.
        layers: the largest over the stage's layer and those before it, so many in all, back to the stage before:
            the ranking of one layer alone can be far off (CLAA, McDanel et al. 2026, arXiv 2602.16054).
        value_norm: `w[h, j]` is the Euclidean norm of the head's value of token `j`, else 1: attention on a small value
            adds little (VATP, Guo et al. 2024, arXiv 2406.12335).
        first: so many tokens at the start of the prompt always go on: attention's sinks (StreamingLLM, Xiao et al.
            2023, arXiv 2309.17453).
        last: so many of the newest tokens always go on (StreamingLLM).

    Raises:
        LazyLLMError: a value out of range.
    """

    queries: int = 1
    pooling: int = 1
    heads: str = "mean"
    layers: int = 1
    value_norm: bool = False
    first: int = 0
    last: int = 1

    def __post_init__(self) -> None:
        for name, least in (("queries", 1), ("pooling", 1), ("layers", 1), ("first", 0), ("last", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise LazyLLMError(f"importance {name}={value!r} must be a whole number, at least {least}")
        if self.pooling % 2 == 0:
            raise LazyLLMError(f"importance pooling={self.pooling} must be an odd number: neighbours on both sides")
        if self.heads not in _HEADS:
            raise LazyLLMError(f"importance heads={self.heads!r} must be mean or max")
        if not isinstance(self.value_norm, bool):
            raise LazyLLMError(f"importance value_norm={self.value_norm!r} must be true or false")

    @property
    def changed(self) -> dict[str, int | str | bool]:
        """The parts that differ from Eq. 1."""
        return {part.name: value for part in fields(self) if (value := getattr(self, part.name)) != part.default}

    @property
    def is_eq1(self) -> bool:
        """Whether it is the paper's."""
        return not self.changed

    def __str__(self) -> str:
        return ",".join(f"{name}:{value}" for name, value in self.changed.items()).lower() or "eq1"


class VariantSelection(DynamicSelection, checked=False):
    """LazyLLM with another importance: at every step anew, revival and all."""

    def __init__(self, cache: TokenCache, importance: Importance) -> None:
        super().__init__(cache)
        self._of = importance
        self._queries: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def wants(self, layer: int) -> bool:
        segment = self.cache.segment_of[layer]
        return segment.stage is not None and layer > segment.layers[-1] - self._of.layers

    def observe(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, scaling: float, softcap: float | None
    ) -> None:
        segment = self.cache.segment_of[layer]
        query, visible = self._latest(layer, segment, query)
        attention = attention_on(key, query, visible, scaling, softcap)
        if self._of.value_norm:
            norm = self.cache.attended_values.to(attention.dtype).norm(dim=-1)
            attention = attention * norm[:, :, None, None]
        # A query older than all active tokens sees none of them.
        by_head = attention.nan_to_num(0.0).mean(dim=3)
        found = by_head.amax(dim=(1, 2)) if self._of.heads == "max" else by_head.mean(dim=(1, 2))
        importance = self.cache.by_position(segment, found[0])
        if layer > max(segment.layers[0], segment.layers[-1] - self._of.layers + 1):
            importance = torch.maximum(self._importance, importance)
        self._importance = importance

    def survivors(self, segment: Segment) -> torch.Tensor:
        importance = self._importance
        active = importance >= 0
        if self._of.pooling > 1:
            importance = _pooled(importance, active, self._of.pooling)
        # Where not all of the protected ones have room, the newest do.
        protected = torch.arange(1, len(active) + 1, device=active.device, dtype=importance.dtype) * _PROTECTED
        for part in (
            slice(min(self._of.first, self.cache.prompt_length)),
            slice(-max(self._of.last, self._of.queries), None),
        ):
            importance[part] = protected[part]
        importance = importance.masked_fill(~active, -1)
        return most_important(importance, segment.stage.kept(segment.n_active))

    def _latest(self, layer: int, segment: Segment, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The last queries of a layer, (1, heads, queries, head_dim), and whom each sees, bool (queries, n_keys)."""
        count = self._of.queries
        if count == 1:
            return query[:, :, -1:], segment.present
        held = self.cache.held(segment)
        if self.cache.prefilling:
            # A copy: a view would keep the queries of the whole prompt.
            latest, positions = query[:, :, -count:].clone(), held[-count:]
        else:
            earlier, before = self._queries[layer]
            latest = torch.cat([earlier, query[:, :, -1:]], dim=2)[:, :, -count:]
            positions = torch.cat([before, before.new_full((1,), self.cache.seen)])[-count:]
        self._queries[layer] = latest, positions
        visible = held <= positions[:, None]
        return latest, visible if segment.present is None else visible & segment.present


def selection_by(importance: Importance) -> Callable[[TokenCache], Selection]:
    """What makes the selection of one generation from its cache."""
    return partial(VariantSelection, importance=importance)


def _pooled(importance: torch.Tensor, active: torch.Tensor, width: int) -> torch.Tensor:
    """The mean over the active ones among `width` neighbouring positions, (positions,)."""
    present = active.to(importance.dtype)
    sums = nn.functional.avg_pool1d((importance * present)[None], width, stride=1, padding=width // 2)
    counts = nn.functional.avg_pool1d(present[None], width, stride=1, padding=width // 2)
    return (sums / counts.clamp(min=1 / (2 * width)))[0]
