"""Where text goes on after pictures: a model of text and images keeps it in itself, and here it is a generation's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from lazyllm.cache import LazyCache


class RopeDeltas:
    """What the parts of a model keep under the name `rope_deltas`: by how much positions exceed a text's own."""

    def __init__(self, model: nn.Module) -> None:
        self._parts = [part for part in model.modules() if "rope_deltas" in vars(part)]
        # The model has them once, for all threads: whoever goes on keeps the others out until they are used.
        self._lock = threading.RLock()

    def get(self) -> list[Any]:
        return [part.rope_deltas for part in self._parts]

    def set(self, deltas: list[Any]) -> None:
        for part, kept in zip(self._parts, deltas, strict=True):
            part.rope_deltas = kept

    def go_on(self, cache: Any) -> Callable[[], None]:
        """Have the model go on where the generation of this cache is, or begin one if it is none of LazyLLM's.

        Returns:
            what lets other threads go on again, to be called once the positions of the pass are known; calls after the
            first do nothing.
        """
        if not self._parts:
            return nothing
        self._lock.acquire()
        kept = cache.generation.rope_deltas if isinstance(cache, LazyCache) else None
        self.set([None] * len(self._parts) if kept is None else kept)
        held = [self._lock]
        return lambda: held.pop().release() if held else None


def nothing() -> None:
    """Lets go where nothing is held."""
