"""The paper's Eq. 1, and settings beyond it: `lazyllm+`."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lazyllm.core.attention import LayerAttention
from lazyllm.core.errors import LazyLLMError
from lazyllm.core.ranking import Ranking

_ABOVE_ALL = float(1 << 40)  # larger than any importance, and exact when multiplied by a position


@dataclass(unsafe_hash=True)
class AttentionRanking(Ranking, checked=False, parallel=True):
    """Rank tokens by attention: by Eq. 1 of the paper, or with other settings `lazyllm+`.

    With the attention probability `a[h, q, j]` of query `q` on token `j` in head `h` of the stage's layer, softmax over
    the active tokens at or before the query:

        importance[j] = mean over neighbours of j of  max over layers of  mean over h and q of  a[h, q, j]

    If the stage keeps fewer tokens than `first` and `queries` protect, it keeps the newest of these. A subclass may
    add settings. A value out of range raises `LazyLLMError`.

    Attributes:
        queries: mean over this many of the layer's last queries, whose tokens are always kept (SnapKV, Li et al. 2024,
            arXiv 2404.14469). Each decoding step adds the newest query and drops the oldest.
        half_life: in that mean a query this many queries before another counts half as much; None weighs all equally.
        pooling: mean over this many neighbouring positions, an odd number, of those that are active (SnapKV).
        layers: maximum over this many layers, the stage's and those before it, back to the previous stage and without
            layers that see a window (CLAA, McDanel et al. 2026, arXiv 2602.16054).
        first: always keep this many tokens at the start of the prompt, the attention sinks (StreamingLLM, Xiao et al.
            2023, arXiv 2309.17453).
        bonus: after prefill, divide the importance of tokens without a KV entry after the stage by this, at least 1.
        every: rank only in every `every`-th decoding step, counted from the last step of several tokens, such as a
            prompt. In the others nothing is pruned or revived. Without revival it must be 1.
        revive: whether pruned tokens can be revived. If not, only the first step ranks (the first chunk of a prompt in
            chunks), and all later tokens are kept. Models whose layers carry a state from token to token need this.
    """

    queries: int = 1
    half_life: float | None = None
    pooling: int = 1
    layers: int = 1
    first: int = 0
    bonus: float = 1.0
    every: int = 1
    revive: bool = True

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        for name, least in {"queries": 1, "pooling": 1, "layers": 1, "first": 0, "every": 1}.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise LazyLLMError(f"ranking {name}={value!r} must be a whole number, at least {least}")
        rules = {
            "pooling": (self.pooling % 2 == 1, "an odd number"),
            "half_life": (self.half_life is None or _is_number(self.half_life), "a number above 0, or None (null)"),
            "bonus": (_is_number(self.bonus) and self.bonus >= 1, "a number, at least 1"),
            "revive": (isinstance(self.revive, bool), "true or false"),
            "every": (self.every == 1 or self.revive, "1 with revive=False, which ranks in prefill only"),
        }
        for name, (is_right, must) in rules.items():
            if not is_right:
                raise LazyLLMError(f"ranking {name}={getattr(self, name)!r} must be {must}")

    def wants(self, layer: int) -> bool:
        return layer in self._ranking_layers(layer)

    def observe(self, attention: LayerAttention) -> None:
        layer, queries = attention.layer, self._latest_queries(attention)
        if not self.sequence.ranks:
            return
        weights = attention.probabilities(*queries)
        by_head = weights.select(3, -1)
        if self.queries > 1:
            weights.nan_to_num_(0.0)  # a query older than all active tokens sees none of them
            if self.half_life is None:
                by_head = weights.mean(dim=3)
            else:
                age = torch.arange(weights.shape[3] - 1, -1, -1, dtype=weights.dtype, device=weights.device)
                decay = torch.exp2(-age / self.half_life)
                by_head = torch.einsum("bkgqn,q->bkgn", weights, decay / decay.sum())
        importance = self.by_position(layer, self.over_processes(by_head.mean(dim=(1, 2))[0]))
        if layer > self._ranking_layers(layer)[0]:
            importance = torch.maximum(self.importance.to(importance.device), importance)
        self.importance = importance

    def survivors(self, layer: int, count: int) -> Tensor:
        if self.pooling > 1 or self.first or self.queries > 1 or self.bonus > 1:
            importance, is_active = self.importance, self.importance >= 0
            if self.pooling > 1:
                importance = _pooled(importance, is_active, self.pooling)
            if self.bonus > 1 and not self.sequence.is_prefill:
                importance = torch.where(self.uncomputed(layer), importance / self.bonus, importance)
            # If the stage keeps fewer than these, it keeps the newest of them.
            ordinals = torch.arange(1, len(is_active) + 1, device=is_active.device, dtype=importance.dtype)
            above_all = ordinals * _ABOVE_ALL
            for ends in (slice(min(self.first, self.sequence.prompt_length)), slice(-self.queries, None)):
                importance[ends] = above_all[ends]
            self.importance = importance.masked_fill(~is_active, -1)
        return super().survivors(layer, count)

    def _ranking_layers(self, layer: int) -> list[int]:
        """Return the layers that rank at the stage that follows `layer`."""
        return self.group_of[layer].ranking_layers[-self.layers :]

    def _latest_queries(self, attention: LayerAttention) -> tuple[Tensor, Tensor | None]:
        """Return the last queries of a layer, (1, heads, queries, head_dim), and their positions, int64 (queries,)."""
        count, sequence, query = self.queries, self.sequence, attention.query
        if count == 1:
            return query[:, :, -1:], None
        window = vars(self).setdefault("_window", {})  # by layer: the latest queries, and their positions
        if sequence.is_prefill:
            # A copy: a view would keep the queries of the whole prompt.
            latest, positions = query[:, :, -count:].clone(), attention.key_positions[-count:]
        else:
            num_new = sequence.num_new_tokens
            new = attention.query_positions[-min(num_new, count) :]
            if num_new > 1:
                new = new[new >= sequence.num_computed_tokens]  # revived tokens were in the window when they were new
            earlier, earlier_positions = window[attention.layer]
            latest = torch.cat([earlier, query[:, :, -new.shape[0] :]], dim=2)[:, :, -count:]
            positions = torch.cat([earlier_positions, new])[-count:]
        window[attention.layer] = latest, positions
        return latest, positions


def plus(*, revive: bool = True) -> AttentionRanking:
    """Return the ranking called `lazyllm+`, chosen by trials on SmolLM2 and Qwen2.5-Coder.

    With `revive=False` only the first step ranks and nothing is revived, for the fastest decoding.
    """
    decoding = {"bonus": 1.5, "every": 8} if revive else {"revive": False}
    return AttentionRanking(queries=32, half_life=8.0, pooling=15, layers=2, first=4, **decoding)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _pooled(importance: Tensor, is_active: Tensor, width: int) -> Tensor:
    """Return the mean over the active ones among `width` neighbouring positions, (positions,)."""
    weights = is_active.to(importance.dtype)
    both = torch.stack([importance * weights, weights])
    sums, counts = nn.functional.avg_pool1d(both, width, stride=1, padding=width // 2)
    return sums / counts.clamp(min=1 / (2 * width))
