"""Static token pruning, a baseline of the paper (section 5.1)."""

from dataclasses import dataclass

import lazyllm
from lazybench.methods.engine import OneStage


@dataclass
class StaticPruning(OneStage):
    """Prune once, without revival, by the mean of Eq. 1 over layers 0 to `layer`."""

    ranking = lazyllm.StaticRanking()
