"""The paper's Eq. 1, and ways to weigh tokens beyond it, each a part that can be set: `lazyllm+`."""

import math
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.importance import attention_on
from lazyllm.core.ranking import Selection

_HEADS = ("mean", "max")
# Above any importance there can be, and times a position still exact.
_PROTECTED = float(1 << 40)


@dataclass(unsafe_hash=True)
class Importance(Selection, checked=False, parallel=True):
    """Rank at every step anew by how much the next token needs each token; without arguments it is Eq. 1, `eq1`.

    With the attention probability `a[h, q, j]`, (heads, queries, tokens), of query `q` on token `j` in head `h` of the
    stage's layer, softmax over the active tokens at or before the query:

        importance[j] = pool over j of  max over layers of  reduce over h of  mean over q of  a[h, q, j] * w[h, j]

    If more tokens always go on than the stage keeps, the newest of them do. Only Eq. 1 is LazyLLM as published; reports
    call any other importance `lazyllm+`. A subclass may add parts. The `search` in a field's metadata
    holds the values that `lazybench calibrate` tries for it; `revival` says that it changes nothing in prefilling.

    Attributes:
        queries: `q` runs over the last so many queries of the layer, not the newest token's alone; their own tokens
            always go on. In decoding the newest query joins and the oldest leaves. One query is noisy; those before it
            ask for much the same (SnapKV, Li et al. 2024, arXiv 2404.14469).
        half_life: in the mean over queries, one that is so many behind the newest counts half as much, so that a long
            window takes in the whole question, and the newest still say most. None weighs all alike.
        pooling: a token's importance is the mean over so many neighbouring positions, an odd number, of those that
            are active: what surrounds a needed token stays with it (SnapKV; FastKV, Jo et al. 2025, arXiv 2502.01068).
        heads: `mean` over the query heads, or `max`: a token that a single head needs goes on.
        layers: the largest over the stage's layer and those before it, so many in all, back to the stage before, that
            see more than a window: the ranking of one layer alone can be far off (CLAA, McDanel et al. 2026, arXiv
            2602.16054).
        value_norm: `w[h, j]` is the Euclidean norm of the head's value of token `j`, else 1: attention on a small value
            adds little (VATP, Guo et al. 2024, arXiv 2406.12335).
        first: so many tokens at the start of the prompt always go on: attention's sinks (StreamingLLM, Xiao et al.
            2023, arXiv 2309.17453).
        last: so many of the newest tokens always go on (StreamingLLM).
        bonus: in a later step a token that is computed in the next layer already ranks as if it were so many times as
            important, at least 1: one that was left behind must be worth the time that its revival takes.
        cap: at most so many tokens that were left behind are revived at a stage in a step, the most important. Computed
            ones take the places of the others, as far as there are any. Tokens that always go on, and once found no
            room, count as well, those of `protect` do not. None means any number.
        for_good: rank in the first pass alone, of a prompt in chunks the first chunk, at any number of stages: what is
            left behind never returns, and all later tokens go on. It is the cheapest to decode with, and the only way
            on models whose layers carry a state from token to token (hybrids with linear attention, Mamba or
            convolution).

    Raises:
        LazyLLMError: a value out of range.
    """

    queries: int = field(default=1, metadata={"search": (1, 4, 8, 16, 32)})
    half_life: float | None = field(default=None, metadata={"search": (None, 8.0)})
    pooling: int = field(default=1, metadata={"search": (1, 7, 15, 31, 63)})
    heads: str = field(default="mean", metadata={"search": _HEADS})
    layers: int = field(default=1, metadata={"search": (1, 2, 3)})
    value_norm: bool = field(default=False, metadata={"search": (False, True)})
    first: int = field(default=0, metadata={"search": (0, 4)})
    last: int = field(default=1, metadata={"search": (1, 8, 32)})
    bonus: float = field(default=1.0, metadata={"search": (1.0, 1.5, 2.0, 4.0), "revival": True})
    cap: int | None = field(default=None, metadata={"search": (None, 16, 4), "revival": True})
    for_good: bool = field(default=False, metadata={"search": (False,), "revival": True})

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        rules = {
            "queries": (_is_whole(self.queries, 1), "a whole number, at least 1"),
            "half_life": (self.half_life is None or _is_number(self.half_life), "a number above 0, or None (null)"),
            "pooling": (_is_whole(self.pooling, 1) and self.pooling % 2 == 1, "an odd number, at least 1"),
            "heads": (self.heads in _HEADS, "mean or max"),
            "layers": (_is_whole(self.layers, 1), "a whole number, at least 1"),
            "value_norm": (isinstance(self.value_norm, bool), "true or false"),
            "first": (_is_whole(self.first, 0), "a whole number, at least 0"),
            "last": (_is_whole(self.last, 1), "a whole number, at least 1"),
            "bonus": (_is_number(self.bonus) and self.bonus >= 1, "a number, at least 1"),
            "for_good": (isinstance(self.for_good, bool), "true or false"),
            "cap": (self.cap is None or _is_whole(self.cap, 0), "a whole number, at least 0, or None (null)"),
        }
        for name, (right, must) in rules.items():
            if not right:
                raise LazyLLMError(f"importance {name}={getattr(self, name)!r} must be {must}")
        self.bonus = float(self.bonus)
        self.half_life = None if self.half_life is None else float(self.half_life)

    @property
    def revives(self) -> bool:  # type: ignore[override]
        """Whether a token that was left behind may go on in a later step."""
        return self.cap != 0 and not self.for_good

    @property
    def changed(self) -> dict[str, int | float | str | bool]:
        """The parts that differ from Eq. 1, and `_target_`, the class, if it is a subclass; none is the paper's."""
        own = {} if type(self) is Importance else {"_target_": f"{type(self).__module__}.{type(self).__qualname__}"}
        return own | {part.name: value for part in fields(self) if (value := getattr(self, part.name)) != part.default}

    def __str__(self) -> str:
        own = [] if type(self) is Importance else [type(self).__qualname__]
        parts = [f"{name}:{value}".lower() for name, value in self.changed.items() if name != "_target_"]
        return ",".join([*own, *parts]) or "eq1"

    def wants(self, layer: int) -> bool:
        group = self.cache.group_of[layer]
        return group.stage is not None and layer in group.ranking[-self.layers :]

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        query, visible = self._latest(layer, query)
        attention = attention_on(key, query, visible, scaling, softcap, self.sinks)
        if self.value_norm:
            attention *= self.values.to(attention.dtype).norm(dim=-1)[:, :, None, None]
        by_head = attention.select(3, -1)
        if self.queries > 1:
            attention.nan_to_num_(0.0)  # a query older than all active tokens sees none of them
            if self.half_life is None:
                by_head = attention.mean(dim=3)
            else:
                behind = torch.arange(attention.shape[3] - 1, -1, -1, dtype=attention.dtype, device=attention.device)
                weights = torch.exp2(-behind / self.half_life)
                by_head = torch.einsum("bkgqn,q->bkgn", attention, weights / weights.sum())
        found = by_head.amax(dim=(1, 2)) if self.heads == "max" else by_head.mean(dim=(1, 2))
        importance = self.by_position(layer, self.over_processes(found[0], self.heads))
        if layer > self.cache.group_of[layer].ranking[-self.layers :][0]:
            importance = torch.maximum(self.importance.to(importance.device), importance)
        self.importance = importance

    def survivors(self, layer: int, count: int) -> Tensor:
        last = max(self.last, self.queries)
        if self.pooling > 1 or self.first or last > 1 or self.bonus > 1:
            importance, active = self.importance, self.importance >= 0
            if self.pooling > 1:
                importance = _pooled(importance, active, self.pooling)
            if self.bonus > 1 and not self.cache.prefilling:
                importance = torch.where(self.uncomputed(layer), importance / self.bonus, importance)
            # Where not all of the protected ones have room, the newest do.
            protected = torch.arange(1, len(active) + 1, device=active.device, dtype=importance.dtype) * _PROTECTED
            for part in (slice(min(self.first, self.cache.prompt_length)), slice(-last, None)):
                importance[part] = protected[part]
            self.importance = importance.masked_fill(~active, -1)
        if self.cap is not None and not self.cache.prefilling:
            # Of the tokens that were left behind only the most important are ranked.
            left_behind = self.uncomputed(layer)
            left_behind[self.cache.seen :] = False
            left_behind.index_fill_(0, self.cache.protected_on(left_behind.device), False)
            ranked = torch.where(left_behind, self.importance, -1).sort(descending=True, stable=True).indices
            excess = left_behind.index_fill(0, ranked[: self.cap], False)
            self.importance = self.importance.masked_fill(excess, -1)
            count = min(count, int((self.importance >= 0).sum()))
        return super().survivors(layer, count)

    def _latest(self, layer: int, query: Tensor) -> tuple[Tensor, Tensor | None]:
        """The last queries of a layer, (1, heads, queries, head_dim), and whom each sees, bool (queries, n_keys)."""
        count = self.queries
        if count == 1:
            return query[:, :, -1:], self.seen(layer)
        held = self.key_positions(layer)
        kept = vars(self).setdefault("_queries", {})  # by layer: the latest queries, and their positions
        if self.cache.prefilling:
            # A copy: a view would keep the queries of the whole prompt.
            latest, positions = query[:, :, -count:].clone(), held[-count:]
        else:
            earlier, before = kept[layer]
            rows = self.cache.rows(self.cache.group_of[layer])[-min(self.cache.new, count) :]
            if self.cache.new > 1:
                rows = rows[rows >= self.cache.seen]  # what is revived asked when it was new
            latest = torch.cat([earlier, query[:, :, -rows.shape[0] :]], dim=2)[:, :, -count:]
            positions = torch.cat([before, rows])[-count:]
        kept[layer] = latest, positions
        return latest, self.seen(layer, positions)


def plus() -> Importance:
    """The ranking that is called `lazyllm+`: a new copy of what stays nearest to SmolLM2 among those searched.

    The last 32 queries rank, the newest above all, over pooled neighbours and the larger of two layers; the first four
    tokens always go on, and one that was left behind comes back where it is worth one and a half of the others.
    """
    return Importance(queries=32, half_life=8.0, pooling=15, layers=2, first=4, bonus=1.5)


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _pooled(importance: Tensor, active: Tensor, width: int) -> Tensor:
    """The mean over the active ones among `width` neighbouring positions, (positions,)."""
    present = active.to(importance.dtype)
    both = torch.stack([importance * present, present])
    sums, counts = nn.functional.avg_pool1d(both, width, stride=1, padding=width // 2)
    return sums / counts.clamp(min=1 / (2 * width))
