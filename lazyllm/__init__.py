"""LazyLLM (Fu et al. 2024): prune the prompt layer by layer, revive tokens when they matter, train nothing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lazyllm.errors import LazyLLMError
from lazyllm.schedule import PruningSchedule, Stage

if TYPE_CHECKING:
    from lazyllm.session import Session, enable
    from lazyllm.stats import Stats

__all__ = ["LazyLLMError", "PruningSchedule", "Session", "Stage", "Stats", "enable"]

# These need torch and transformers, which take seconds to import: a schedule can be read and checked without.
_HEAVY = {"Session": "lazyllm.session", "enable": "lazyllm.session", "Stats": "lazyllm.stats"}


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module 'lazyllm' has no attribute {name!r}")
    return getattr(import_module(_HEAVY[name]), name)


def __dir__() -> list[str]:
    return __all__
