"""FastKV's token-selective propagation (Jo et al. 2025, arXiv 2502.01068)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import lazyllm
from lazybench.methods.checks import check_count
from lazybench.methods.one_stage import OneStage
from lazybench.methods.pooling import check_pooling, pooled


@dataclass
class FastKV(OneStage):
    """Prune by the attention of the last few tokens in the layer after which to prune.

    The importance of a token is the sum over the last `window` queries and all heads of their attention probability
    on it in that layer, averaged over `pooling` neighbours; the window itself always goes on. FastKV also thins out
    the cache of the layers before, which leaves the time to first token as it is: that part is left out.

    Attributes:
        layer: the decoder layer after which to prune.
        keep: fraction of the prompt tokens that go on, the window included.
        window: number of last queries.
        pooling: neighbours in an average, an odd number.
    """

    layer: int = 15
    keep: float = 0.2
    window: int = 8
    pooling: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("window", self.window)
        check_pooling(self.pooling)

    @property
    def selection(self) -> type[lazyllm.FrozenSelection]:
        parts = {"window": self.window, "pooling": self.pooling}
        return type("Windowed", (WindowSelection,), parts, checked=False)


class WindowSelection(lazyllm.FrozenSelection, checked=False):
    """By the attention of the last `window` queries, pooled; the window itself goes on."""

    window = 8
    pooling = 7

    def observe(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, scaling: float, softcap: float | None
    ) -> None:
        tokens = key.shape[2]
        if tokens == 1:
            self._importance = key.new_empty(0)
            return
        window = min(self.window, tokens - 1)
        batch, kv_heads, _, width = key.shape
        rows = query[:, :, -window:].reshape(batch, kv_heads, -1, width).float()
        scores = torch.matmul(rows, key.float().transpose(-1, -2)).view(-1, window, tokens) * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        later = torch.ones(window, tokens, dtype=torch.bool, device=key.device).triu(tokens - window + 1)
        attention = scores.masked_fill(later, float("-inf")).softmax(dim=-1)[..., : tokens - window].sum(dim=1)
        self._importance = pooled(attention, self.pooling).sum(dim=0)

    def choose(self, count: int) -> torch.Tensor:
        earlier = self._importance.shape[0]
        recent = torch.arange(earlier, self.cache.total, device=self._importance.device)[-count:]
        chosen = self._importance.sort(descending=True, stable=True).indices[: count - recent.shape[0]]
        return torch.cat([chosen.sort().values, recent])
