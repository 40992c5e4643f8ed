"""Replace methods of a model, count the calls that run meanwhile, and restore the methods."""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from lazyllm.core.errors import LazyLLMError

# Seconds that the end of a session waits for calls in other threads, most of which are about to return.
PATIENCE = 10.0


class Patch:
    """Call `replacement(original, *args, **kwargs)` in place of a module's method, until it is removed.

    A method, not a hook: the user's own hooks stay on either side of it and see what they see on the unmodified model.
    """

    def __init__(self, module: nn.Module, name: str, replacement: Callable[..., Any]) -> None:
        self._module, self._name = module, name
        self._replacement: Callable[..., Any] | None = replacement
        self._was_attribute = name in vars(module)
        self.original: Callable[..., Any] = getattr(module, name)
        self.__wrapped__ = self.original  # so that transformers sees the method's own signature
        setattr(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        replacement = self._replacement
        return self.original(*args, **kwargs) if replacement is None else replacement(self.original, *args, **kwargs)

    def remove(self) -> None:
        """Restore the method; whoever still refers to the patch calls the method, too."""
        self._replacement = None
        if vars(self._module).get(self._name) is not self:
            return  # something was put on top meanwhile, and it still calls this
        delattr(self._module, self._name)
        if self._was_attribute:
            setattr(self._module, self._name, self.original)


def arguments_by_name(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call of `method` by their names."""
    return {**dict(zip(inspect.signature(method).parameters, args, strict=False)), **kwargs} if args else kwargs


class ActiveCalls:
    """The calls that run on a model, by thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._depth: Counter[int] = Counter()  # calls within each other, by thread
        self._is_closed = False

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a call of this thread as running; refuse a new thread's once the session has ended."""
        thread = threading.get_ident()
        with self._changed:
            if self._is_closed and thread not in self._depth:
                raise LazyLLMError("the `with` of lazyllm.enable has ended: generate inside it")
            self._depth[thread] += 1
        try:
            yield
        finally:
            with self._changed:
                self._depth[thread] -= 1
                if not self._depth[thread]:
                    del self._depth[thread]
                    self._changed.notify_all()

    def close(self) -> bool:
        """Let no new thread in, and return whether all others have returned within `PATIENCE` seconds."""
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: self._depth.keys() <= {threading.get_ident()}, PATIENCE)
