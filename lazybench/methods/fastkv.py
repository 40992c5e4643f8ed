"""FastKV's token-selective propagation (Jo et al. 2025, arXiv 2502.01068)."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

import lazyllm
from lazybench.methods.engine import OneStage
from lazybench.methods.shared import pool
from lazybench.rules import COUNT, KERNEL, LAYER, ODD, SHARE, setting


@dataclass
class FastKV(OneStage):
    """Prune by the attention of the last few tokens in the layer of the stage.

    A token's importance is its attention probability in that layer, summed over the last `window` queries and all
    heads, and pooled over `pooling` neighbours: the average as in the paper, or `max` as in the authors' later code.
    The window itself is kept. FastKV also compresses the cache of earlier layers, which does not change TTFT: that
    part is left out.
    """

    layer: int | str = setting("50%", LAYER)
    keep: float = setting(0.2, SHARE)
    window: int = setting(8, COUNT)
    pooling: int = setting(7, ODD)
    kernel: str = setting("average", KERNEL)

    @property
    def ranking(self) -> lazyllm.FrozenRanking:
        return WindowRanking(self.window, self.pooling, self.kernel)

    def trials(self) -> list[Self]:
        other = "average" if self.kernel == "max" else "max"
        poolings = ((self.pooling, self.kernel), (15, self.kernel), (self.pooling, other))
        return [
            replace(self, layer=layer, pooling=size, kernel=kernel)
            for layer in ("4%", "8%", "12%", "20%")
            for size, kernel in poolings
        ]


@dataclass
class WindowRanking(lazyllm.FrozenRanking, checked=False):
    """Ranks by the pooled attention of the last `window` queries, and keeps these."""

    window: int
    pooling: int
    kernel: str

    def observe(self, attention: lazyllm.LayerAttention) -> None:
        self.num_tokens = attention.key.shape[2]
        if self.num_tokens == 1:
            self.importance = attention.key.new_empty(0)
            return
        window = min(self.window, self.num_tokens - 1)
        positions = self.active(attention.layer)[-window:]
        weights = attention.probabilities(attention.query[:, :, -window:], positions)
        by_head = weights[0, ..., :-window].sum(dim=2).flatten(0, 1)  # (heads, tokens before the window)
        self.importance = pool(by_head, self.pooling, self.kernel).sum(dim=0)

    def survivors(self, layer: int, count: int) -> Tensor:
        recent = torch.arange(len(self.importance), self.num_tokens, device=self.importance.device)[-count:]
        chosen = self.importance.sort(descending=True, stable=True).indices[: count - recent.shape[0]]
        return torch.cat([chosen.sort().values, recent])
