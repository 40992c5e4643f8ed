"""What is under way on a model, thread by thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lazyllm.errors import LazyLLMError


class Traffic:
    """Lets calls in until it is closed, which waits for those of other threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[int, list[str]] = {}
        self._closing = False
        self._closed = False

    @contextmanager
    def enter(self, call: str) -> Iterator[None]:
        """Count a call of this name as under way in this thread.

        Raises:
            LazyLLMError: the traffic is closed, or about to be and this thread has nothing under way.
        """
        thread = threading.get_ident()
        with self._changed:
            if self._closed or (self._closing and thread not in self._calls):
                raise LazyLLMError("the `with` of lazyllm.enable has ended: generate inside it")
            self._calls.setdefault(thread, []).append(call)
        try:
            yield
        finally:
            with self._changed:
                self._calls[thread].pop()
                if not self._calls[thread]:
                    del self._calls[thread]
                    self._changed.notify_all()

    def inside(self, call: str) -> bool:
        """Whether a call of this name is under way in this thread."""
        return call in self._calls.get(threading.get_ident(), ())

    def close(self) -> None:
        """Let no new thread in, wait until the others are done, then let nothing in."""
        thread = threading.get_ident()
        with self._changed:
            self._closing = True
            try:
                self._changed.wait_for(lambda: not self._calls.keys() - {thread})
            finally:
                self._closed = True
