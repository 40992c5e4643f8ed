"""What is under way on a model, thread by thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lazyllm.errors import LazyLLMError

# Seconds without a sign of life after which a thread in `generate` is taken to wait for something else than the model.
PATIENCE = 60.0


class Traffic:
    """Lets calls in until it is closed, which waits for those of other threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[int, list[str]] = {}
        self._count = 0  # how often something came or went
        self._closing = False
        self._closed = False

    @contextmanager
    def enter(self, call: str) -> Iterator[None]:
        """Count a call of this name as under way in this thread; a closed traffic lets none in."""
        thread = threading.get_ident()
        with self._changed:
            if self._closed or (self._closing and thread not in self._calls):
                raise LazyLLMError("the `with` of lazyllm.enable has ended: generate inside it")
            self._calls.setdefault(thread, []).append(call)
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls[thread].pop()
                self._count += 1
                if not self._calls[thread]:
                    del self._calls[thread]
                    self._changed.notify_all()

    def inside(self, call: str) -> bool:
        return call in self._calls.get(threading.get_ident(), ())

    def close(self) -> bool:
        """Let no new thread in, wait until the others are done, then let nothing in.

        Returns:
            False where some are not done: nothing came or went for `PATIENCE` seconds, and none was at the model.
        """
        with self._changed:
            self._closing = True
            try:
                while others := self._others():
                    before = self._count
                    self._changed.wait(PATIENCE)
                    # Whoever is at the model comes back from it; whoever is between two passes may never.
                    if self._count == before and all(calls[-1].startswith("generate") for calls in others):
                        return False
            finally:
                self._closed = True
        return True

    def _others(self) -> list[list[str]]:
        return [calls for thread, calls in self._calls.items() if thread != threading.get_ident()]
