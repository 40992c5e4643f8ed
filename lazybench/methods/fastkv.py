"""FastKV's token-selective propagation (Jo et al. 2025, arXiv 2502.01068)."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

import lazyllm
from lazybench.methods.engine import OneStage
from lazybench.methods.shared import COUNT, KERNEL, LAYER, ODD, SHARE, pooled, setting


@dataclass
class FastKV(OneStage):
    """Prune by the attention of the last few tokens in the layer after which to prune.

    The importance of a token is the sum over the last `window` queries and all heads of their attention probability
    on it in that layer, averaged over `pooling` neighbours, or the largest of them, as the authors' repository has it
    since; the window itself always goes on. FastKV also thins out the cache of the layers before, which leaves the time
    to first token as it is: that part is left out.
    """

    layer: int | str = setting("50%", LAYER)
    keep: float = setting(0.2, SHARE)
    window: int = setting(8, COUNT)
    pooling: int = setting(7, ODD)
    kernel: str = setting("average", KERNEL)

    @property
    def selection(self) -> lazyllm.FrozenSelection:
        return WindowSelection(self.window, self.pooling, self.kernel)

    def trials(self) -> list[Self]:
        other = "average" if self.kernel == "max" else "max"
        ways = ((self.pooling, self.kernel), (15, self.kernel), (self.pooling, other))
        return [
            replace(self, layer=layer, pooling=of, kernel=by) for layer in ("4%", "8%", "12%", "20%") for of, by in ways
        ]


@dataclass
class WindowSelection(lazyllm.FrozenSelection, checked=False):
    """By the attention of the last `window` queries, pooled; the window itself goes on."""

    window: int
    pooling: int
    kernel: str

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        self.importance = self.attention(layer, query, key, scaling, softcap).sum(dim=(0, 1))

    def attention(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> Tensor:
        """The window's pooled attention on the tokens before it, (kv_heads, heads of a group, tokens)."""
        self.tokens = tokens = key.shape[2]
        groups = query.shape[1] // key.shape[1]
        if tokens == 1:
            return key.new_empty(key.shape[1], groups, 0)
        window = min(self.window, tokens - 1)
        visible = self.seen(layer, self.active(layer)[-window:])
        attention = lazyllm.attention_on(key, query[:, :, -window:], visible, scaling, softcap, self.sinks)
        by_head = attention[0, ..., : tokens - window].sum(dim=2)
        return pooled(by_head.flatten(0, 1), self.pooling, self.kernel).unflatten(0, (-1, groups))

    def survivors(self, layer: int, count: int) -> Tensor:
        earlier = self.importance.shape[0]
        recent = torch.arange(earlier, self.tokens, device=self.importance.device)[-count:]
        chosen = self.importance.sort(descending=True, stable=True).indices[: count - recent.shape[0]]
        return torch.cat([chosen.sort().values, recent])
