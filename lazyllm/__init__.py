"""LazyLLM (Fu et al. 2024): prune the prompt layer by layer, revive tokens when they matter, train nothing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lazyllm.errors import LazyLLMError
from lazyllm.schedule import PruningSchedule, Stage

if TYPE_CHECKING:
    from lazyllm.selection import DynamicSelection, FrozenSelection, Selection, StaticSelection
    from lazyllm.session import Session, enable
    from lazyllm.stats import Stats
    from lazyllm.variants import Importance

__all__ = [
    "DynamicSelection",
    "FrozenSelection",
    "Importance",
    "LazyLLMError",
    "PruningSchedule",
    "Selection",
    "Session",
    "Stage",
    "StaticSelection",
    "Stats",
    "enable",
]

# These need torch and transformers, which take seconds to import: a schedule can be read and checked without.
_HEAVY = {
    "lazyllm.selection": ("DynamicSelection", "FrozenSelection", "Selection", "StaticSelection"),
    "lazyllm.session": ("Session", "enable"),
    "lazyllm.stats": ("Stats",),
    "lazyllm.variants": ("Importance",),
}
_HOMES = {name: module for module, names in _HEAVY.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lazyllm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
