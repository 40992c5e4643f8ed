"""What is under way on a model, thread by thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lazyllm.hf.refusals import refusal

# Seconds that the end of a session waits for calls in other threads, most of which are about to return.
PATIENCE = 10.0


class Calls:
    """Lets calls in until it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._names: dict[int, list[str]] = {}  # by thread
        self._closing = self._closed = False

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        """Count a call as under way in this thread."""
        thread = threading.get_ident()
        with self._changed:
            if self._closed or (self._closing and thread not in self._names):
                raise refusal("ended")
            self._names.setdefault(thread, []).append(name)
        try:
            yield
        finally:
            with self._changed:
                self._names[thread].pop()
                if not self._names[thread]:
                    del self._names[thread]
                    self._changed.notify_all()

    def close(self) -> list[str]:
        """Let no new thread in, wait a little for others, then let nothing in; gives what they have not finished."""
        with self._changed:
            self._closing = True
            try:
                self._changed.wait_for(lambda: not self._others(), PATIENCE)
            finally:
                self._closed = True
            return self._others()

    def _others(self) -> list[str]:
        return [names[0] for thread, names in self._names.items() if thread != threading.get_ident()]
