"""LazyLLM (Fu et al. 2024): prune the prompt layer by layer, revive tokens when they matter, train nothing."""

from lazyllm.errors import LazyLLMError
from lazyllm.schedule import PruningSchedule, Stage
from lazyllm.session import Session, enable
from lazyllm.stats import Stats

__all__ = ["LazyLLMError", "PruningSchedule", "Session", "Stage", "Stats", "enable"]
