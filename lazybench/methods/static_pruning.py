"""Static token pruning, a baseline of the paper (section 5.1)."""

from dataclasses import dataclass

import lazyllm
from lazybench.methods.engine import OneStage


@dataclass
class StaticPruning(OneStage):
    """Prune by the attention in the first layers: Eq. 1's importance is the mean over layers 0 to `layer`."""

    selection = lazyllm.StaticSelection()
