"""Rankings that choose once, in prefilling: the paper's static token pruning, and others that are built on it."""

from torch import Tensor

from lazyllm.core.importance import newest_row
from lazyllm.core.ranking import Selection


class FrozenSelection(Selection, checked=False, parallel=True):
    """At one stage, in the first pass, for good: what it prunes never returns, and no later token is pruned."""

    single_stage = True
    for_good = True


class StaticSelection(FrozenSelection, checked=False, parallel=True):
    """Static token pruning, a baseline of the paper: by the mean importance over layers 0 to the stage's."""

    def wants(self, layer: int) -> bool:
        return self.cache.group_of[layer].stage is not None

    def observe(self, layer: int, query: Tensor, key: Tensor, scaling: float, softcap: float | None) -> None:
        importance = self.over_processes(newest_row(query, key, self.seen(layer), scaling, softcap, self.sinks))
        earlier = getattr(self, "importance", None)  # the mean ranks as the sum does
        self.importance = importance if earlier is None else earlier.to(importance.device) + importance
