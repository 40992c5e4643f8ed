"""LazyLLM (Fu et al. 2024): prune the prompt layer by layer, revive tokens when they matter, train nothing."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.schedule import PruningSchedule, Stage

if TYPE_CHECKING:
    from lazyllm.core.attention import LayerAttention
    from lazyllm.core.importance import most_important
    from lazyllm.core.ranking import Ranking
    from lazyllm.core.sequence import Stats
    from lazyllm.extras.prompts import Selected, select, template_tokens
    from lazyllm.extras.scoring import LogLikelihood, log_likelihoods
    from lazyllm.hf.enable import Session, enable
    from lazyllm.rankings.attention import AttentionRanking, plus
    from lazyllm.rankings.static import FrozenRanking, StaticRanking

__all__ = [
    "AttentionRanking",
    "FrozenRanking",
    "LayerAttention",
    "LazyLLMError",
    "LogLikelihood",
    "PruningSchedule",
    "Ranking",
    "Selected",
    "Session",
    "Stage",
    "StaticRanking",
    "Stats",
    "enable",
    "log_likelihoods",
    "most_important",
    "plus",
    "select",
    "template_tokens",
]

# Imported on first use: they need torch and transformers, which take seconds to import, and a schedule does not.
_LAZY = (
    "core.importance core.ranking core.sequence rankings.attention rankings.static hf.enable extras.prompts "
    "extras.scoring"
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("lazybench")  # the distribution that contains this package
    for module in _LAZY.split() if name in __all__ else ():
        if (value := getattr(import_module(f"lazyllm.{module}"), name, None)) is not None:
            return value
    raise AttributeError(f"module 'lazyllm' has no attribute {name!r}")
