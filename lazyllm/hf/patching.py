"""Puts LazyLLM in the way of a model's own methods, counts the calls under way, and takes it out again."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from lazyllm.hf.refusals import refusal, refuse_if

# Seconds that the end of a session waits for calls in other threads, most of which are about to return.
PATIENCE = 10.0


class Patch:
    """Stands in for a bound method of one module, until it is removed.

    In its place `through(original, *args, **kwargs)` is called. It is a method, not a hook: hooks of the user's own,
    whenever they are set, stay on either side of it and see what they would see on the unmodified model.
    """

    def __init__(self, module: nn.Module, name: str, through: Callable[..., Any]) -> None:
        self._module, self._name = module, name
        self._through: Callable[..., Any] | None = through
        self._shadowed = name in vars(module)
        self.original: Callable[..., Any] = getattr(module, name)
        self.__wrapped__ = self.original  # so that transformers sees the method's own signature
        setattr(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        through = self._through
        return self.original(*args, **kwargs) if through is None else through(self.original, *args, **kwargs)

    def remove(self) -> None:
        """Give the module its method back. Whoever still holds the patch gets the method, too."""
        self._through = None
        if vars(self._module).get(self._name) is not self:
            return  # something was put on top meanwhile, and it still calls this
        delattr(self._module, self._name)
        if self._shadowed:
            setattr(self._module, self._name, self.original)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._through is None:
            return self.original.__reduce_ex__(protocol)
        raise refusal("copied", module=type(self._module).__name__)


def by_name(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `method`, all by their names."""
    return {**dict(zip(inspect.signature(method).parameters, args, strict=False)), **kwargs} if args else kwargs


class Calls:
    """What is under way on a model, thread by thread: lets calls in until it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._names: dict[int, list[str]] = {}  # by thread
        self._closing = False

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        """Count a call as under way in this thread."""
        thread = threading.get_ident()
        with self._changed:
            refuse_if(self._closing and thread not in self._names, "ended")
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
        """Let no new thread in, and wait a little for others; gives what they have not finished."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self._others(), PATIENCE)
            return self._others()

    def _others(self) -> list[str]:
        return [names[0] for thread, names in self._names.items() if thread != threading.get_ident()]
