"""What a plan knows of models: their size is enough, and what is out of reach does not stop it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lazybench.config import ModelConfig
from lazybench.data.hub import OutOfReach
from lazybench.run.job import Sources


class Outlook(Sources):
    """Sources of a plan: a tokenizer, a structure or an identity of weights that is out of reach is None.

    Attributes:
        missing: for each model that lacks something, by its path, why a run of it could not start here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: dict[str, str] = {}

    def _identity(self, model: ModelConfig) -> str | None:
        return None if self.tokenizer(model) is None else super()._identity(model)

    def _once(self, kind: str, key: dict[str, Any], load: Callable[[], Any]) -> Any:
        def load_if_there() -> Any:
            try:
                return load()
            except OutOfReach as error:
                self.missing.setdefault(key["path"], str(error))
                return None

        return super()._once(kind, key, load_if_there)
