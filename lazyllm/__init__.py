"""LazyLLM (Fu et al. 2024): prune the prompt layer by layer, revive tokens when they matter, train nothing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.schedule import PruningSchedule, Stage

if TYPE_CHECKING:
    from lazyllm.core.importance import attention_on, most_important, newest_row
    from lazyllm.core.ranking import Selection
    from lazyllm.core.stats import Stats
    from lazyllm.extras.texts import LogLikelihood, Selected, log_likelihoods, select, template_tokens
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
    "log_likelihoods",
    "most_important",
    "newest_row",
    "plus",
    "select",
    "template_tokens",
]

# These need torch and transformers, which take seconds to import: a schedule can be read and checked without.
_HOMES = "core.importance core.ranking core.stats rankings.plus rankings.static hf.session extras.texts"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("lazybench")  # the distribution that this package comes in
    for home in _HOMES.split() if name in __all__ else ():
        if (found := getattr(import_module(f"lazyllm.{home}"), name, None)) is not None:
            return found
    raise AttributeError(f"module 'lazyllm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
