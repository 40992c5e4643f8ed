"""LazyLLM (Fu et al. 2024): prune the prompt layer by layer, revive tokens when they matter, train nothing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.schedule import PruningSchedule, Stage

if TYPE_CHECKING:
    from lazyllm.core.importance import attention_on, most_important, newest_row
    from lazyllm.core.ranking import Selection
    from lazyllm.core.stats import Stats
    from lazyllm.extras.texts import LogLikelihood, Selected, log_likelihood, log_likelihoods, select, template_tokens
    from lazyllm.hf.session import Session, enable
    from lazyllm.rankings.plus import Importance, plus
    from lazyllm.rankings.static import FrozenSelection, StaticSelection

__all__ = [
    "FrozenSelection",
    "Importance",
    "LazyLLMError",
    "LogLikelihood",
    "PruningSchedule",
    "Selected",
    "Selection",
    "Session",
    "Stage",
    "StaticSelection",
    "Stats",
    "attention_on",
    "enable",
    "log_likelihood",
    "log_likelihoods",
    "most_important",
    "newest_row",
    "plus",
    "select",
    "template_tokens",
]

# These need torch and transformers, which take seconds to import: a schedule can be read and checked without.
_HEAVY = {
    "lazyllm.core.importance": ("attention_on", "most_important", "newest_row"),
    "lazyllm.core.ranking": ("Selection",),
    "lazyllm.core.stats": ("Stats",),
    "lazyllm.extras.texts": (
        "LogLikelihood",
        "Selected",
        "log_likelihood",
        "log_likelihoods",
        "select",
        "template_tokens",
    ),
    "lazyllm.hf.session": ("Session", "enable"),
    "lazyllm.rankings.plus": ("Importance", "plus"),
    "lazyllm.rankings.static": ("FrozenSelection", "StaticSelection"),
}
_HOMES = {name: module for module, names in _HEAVY.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("lazybench")  # the distribution that this package comes in
    if name not in _HOMES:
        raise AttributeError(f"module 'lazyllm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
