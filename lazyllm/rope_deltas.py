"""Where text goes on after pictures: a model of text and images keeps it in itself, and here it is a generation's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from lazyllm.cache import LazyCache


class _Thread(threading.local):
    """Whether a thread keeps the others out."""

    holds = False


class RopeDeltas:
    """What the parts of a model keep under the name `rope_deltas`: by how much positions exceed a text's own."""

    def __init__(self, model: nn.Module) -> None:
        self._parts = [part for part in model.modules() if "rope_deltas" in vars(part)]
        # The model has them once, for all threads: whoever goes on keeps the others out until they are used.
        self._lock = threading.RLock()
        self._thread = _Thread()

    def get(self) -> list[Any]:
        return [part.rope_deltas for part in self._parts]

    def set(self, deltas: list[Any]) -> None:
        for part, kept in zip(self._parts, deltas, strict=True):
            part.rope_deltas = kept

    @contextmanager
    def of(self, cache: Any, back: bool = False) -> Iterator[None]:
        """Have the model go on where the generation of this cache is, or begin one if it is none of LazyLLM's.

        Other threads wait until `let_go`, or the end. With `back` the model then has again what it had before.
        """
        if not self._parts:
            yield
            return
        before, outer = self.get(), self._thread.holds
        self._lock.acquire()
        self._thread.holds = True
        try:
            kept = cache.generation.rope_deltas if isinstance(cache, LazyCache) else None
            self.set([None] * len(self._parts) if kept is None else kept)
            yield
        finally:
            self.let_go()
            self._thread.holds = outer
            if back:
                self.set(before)

    def let_go(self) -> None:
        """The positions of this thread's pass are known: let other threads go on."""
        if self._thread.holds:
            self._thread.holds = False
            self._lock.release()
