"""LazyLLM (Fu et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lazyllm
from lazybench.errors import LazyBenchError
from lazybench.methods.engine import Staged
from lazybench.methods.shared import naming
from lazybench.model.instance import make

EQ1 = "eq1"
NAMED = {EQ1: lazyllm.Importance, "plus": lazyllm.plus}
PAPER, PLUS, FOR_GOOD = "lazyllm", "lazyllm+", "lazyllm_for_good"


@dataclass
class LazyLLM(Staged):
    """Progressive, dynamic pruning with an Aux Cache (paper, section 3.2).

    Attributes:
        importance: by what tokens are ranked: `eq1`, the paper's; `plus`, that of `lazyllm.plus`; or the parts of
            `lazyllm.Importance` that differ from Eq. 1, such as `{queries: 8, pooling: 7}`; a subclass of it is named
            by `_target_`. With another than the paper's the method is called `lazyllm+`, and `lazyllm_for_good` where
            nothing comes back.
    """

    importance: Any = EQ1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.selection = parse_importance(self.importance, "method.importance", list(NAMED))
        self.importance = self.selection.changed or EQ1
        if self.name in (PAPER, PLUS, FOR_GOOD):
            plus = FOR_GOOD if self.selection.for_good else PLUS
            self.name = plus if self.selection.changed else PAPER


def parse_importance(value: object, key: str, names: Sequence[str]) -> lazyllm.Importance:
    """The importance that the setting `key` describes; `names` are what it may be besides parts, for messages.

    The value is `eq1`, `plus`, parts of `lazyllm.Importance`, or those of a subclass and `_target_`, its name.
    """
    if isinstance(value, str) and value in NAMED:
        return NAMED[value]()
    if isinstance(value, dict):
        with naming(key):
            value = make(key, {"_target_": "lazyllm.Importance", **value}, "a subclass of lazyllm.Importance")
    if not isinstance(value, lazyllm.Importance):
        parts = f"'{key}={{queries:8,pooling:7}}'"
        raise LazyBenchError(f"{key}={value} must be {', '.join(names)} or parts such as {parts}")
    return value
