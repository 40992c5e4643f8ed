"""Cross-layer attention aggregation, CLAA (McDanel et al. 2026, arXiv 2602.16054)."""

from dataclasses import dataclass

import torch
from torch import Tensor

import lazyllm
from lazybench.methods.fastkv import FastKV, WindowSelection
from lazybench.methods.shared import COUNT, setting

_TINY = 1e-8  # of the authors' code: keeps scores finite that are all the same


@dataclass
class CLAA(FastKV):
    """FastKV's pruning, ranked by several layers instead of one.

    In each of the last `layers` layers up to the stage's that see more than a window, each token has a score for each
    key head: FastKV's pooled attention of the last queries, summed over the query heads of that key head. Less their
    mean over tokens, divided by their standard deviation, the scores of all heads and layers are comparable; the
    largest is the token's importance.

    This follows the authors' code as it stood in August 2025, the normalisation included; the paper is younger, and was
    not compared. As with FastKV, thinning out the cache of the layers before is left out: it leaves the time to first
    token as it is.
    """

    label, colour = "CLAA", "tab:olive"

    layers: int = setting(4, COUNT)

    @property
    def selection(self) -> lazyllm.FrozenSelection:
        return LayersSelection(self.window, self.pooling, self.kernel, self.layers)


@dataclass
class LayersSelection(WindowSelection, checked=False):
    """By the window's normalised attention in the last `layers` layers that may rank, the largest of any head."""

    layers: int

    def wants(self, layer: int) -> bool:
        group = self.cache.group_of[layer]
        return group.stage is not None and layer in group.ranking[-self.layers :]

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        scores = self.attention(layer, query, key, scaling, softcap).sum(dim=1)
        centred = scores - scores.mean(dim=-1, keepdim=True)
        deviation = centred.square().mean(dim=-1, keepdim=True).sqrt()
        largest = (centred / (deviation + _TINY)).amax(dim=0)
        if layer > self.cache.group_of[layer].ranking[-self.layers :][0]:
            largest = torch.maximum(self.importance.to(largest.device), largest)
        self.importance = largest
