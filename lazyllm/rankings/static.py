"""Rankings that choose once, in prefill: the paper's static token pruning, and others built on it."""

from lazyllm.core.attention import LayerAttention
from lazyllm.core.ranking import Ranking


class FrozenRanking(Ranking, checked=False, parallel=True):
    """Rank at one stage, in the first step, without revival: all later tokens are kept."""

    single_stage = True
    revive = False


class StaticRanking(FrozenRanking, checked=False, parallel=True):
    """Static token pruning, a baseline of the paper: rank by the mean importance over layers 0 to the stage's."""

    def wants(self, layer: int) -> bool:
        return True

    def observe(self, attention: LayerAttention) -> None:
        importance = self.over_processes(attention.probabilities().mean(dim=(1, 2, 3))[0])
        earlier = getattr(self, "importance", None)  # the sum ranks as the mean does
        self.importance = importance if earlier is None else earlier.to(importance.device) + importance
