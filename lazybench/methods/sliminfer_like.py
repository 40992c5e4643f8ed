"""Pruning of hidden states by blocks, like SlimInfer's (Long et al. 2025, arXiv 2508.06447)."""

from dataclasses import dataclass

import torch
from torch import Tensor

import lazyllm
from lazybench.methods.engine import Staged
from lazybench.methods.shared import COUNT, setting


@dataclass
class SlimInferLike(Staged):
    """At each stage drop whole blocks of the prompt's hidden states, once and for good.

    A block is `block` neighbouring positions of the prompt, counted from its start, as far as they are still active.
    Its importance is the mean over its active tokens of the attention probability on them, the mean over heads and over
    the last `window` queries, in the layer of the stage. The newest token's block and the first one always go on, and
    the most important of the others while all that go on are no more than the schedule keeps.

    It is *like* SlimInfer: that prunes hidden states layer by layer and by blocks, too. How the score, the blocks and
    the schedule are made here is LazyBench's own choice. SlimInfer's asynchronous manager of keys and values, which
    fetches blocks in decoding, is left out: what is pruned never returns.
    """

    label, colour = "SlimInfer-like", "tab:pink"

    block: int = setting(32, COUNT)
    window: int = setting(8, COUNT)

    @property
    def selection(self) -> lazyllm.Selection:
        return BlockSelection(self.block, self.window)


@dataclass
class BlockSelection(lazyllm.Selection, checked=False):
    """Whole blocks by the attention of the last `window` queries, chosen in prefilling for each stage."""

    block: int
    window: int
    revives = False
    for_good = True

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        visible = self.seen(layer, self.active(layer)[-self.window :])
        attention = lazyllm.attention_on(key, query[:, :, -self.window :], visible, scaling, softcap, self.sinks)
        self.importance = attention.mean(dim=(1, 2, 3))[0]

    def survivors(self, layer: int, count: int) -> Tensor:
        active = self.active(layer)
        of, blocks = active // self.block, int(active[-1]) // self.block + 1
        sizes = torch.bincount(of, minlength=blocks)
        score = torch.zeros(blocks, dtype=self.importance.dtype, device=active.device)
        score = score.index_add(0, of, self.importance) / sizes.clamp(min=1)
        score[0], score[-1] = 2, 3  # above any probability; the newest token's block before the first one
        best = score.sort(descending=True, stable=True).indices
        room = sizes[best].cumsum(0) <= count
        room[:2] = True
        goes_on = torch.zeros(blocks, dtype=torch.bool, device=active.device)
        goes_on[best[room]] = True
        return active[goes_on[of]]
