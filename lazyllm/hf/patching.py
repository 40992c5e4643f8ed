"""Replace methods and attributes of a model for a while, and restore them."""

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import nn

from lazyllm.core.errors import LazyLLMError
from lazyllm.hf.private import rename_cache


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

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise LazyLLMError("a model is not copied or pickled while LazyLLM is enabled on it: do so outside the `with`")

    def remove(self) -> None:
        """Restore the method; references to the patch that remain call the method, too."""
        self._replacement = None
        if vars(self._module).get(self._name) is not self:
            return  # another patch was put on top meanwhile, and it still calls this one
        delattr(self._module, self._name)
        if self._was_attribute:
            setattr(self._module, self._name, self.original)


def arguments_by_name(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call of `method` by their names, the cache as `private.CACHE`."""
    named = {**dict(zip(inspect.signature(method).parameters, args, strict=False)), **kwargs} if args else kwargs
    return rename_cache(named)


class RopeDeltas:
    """The `rope_deltas` of a model's modules: by how much positions after an image exceed the count of tokens."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = [module for module in modules if "rope_deltas" in vars(module)]
        self._lock = threading.RLock()  # the model has one value for all threads, so generations take turns

    def get(self) -> list[Any]:
        return [module.rope_deltas for module in self._modules]

    def set(self, deltas: list[Any] | None) -> None:
        for module, value in zip(self._modules, deltas or [None] * len(self._modules), strict=True):
            module.rope_deltas = value

    @contextmanager
    def of_generation(self, cache: Any) -> Iterator[None]:
        """Give the model the deltas of the generation with this cache, None for a new one; other threads wait."""
        if not self._modules:
            yield
            return
        with self._lock:
            before = self.get()
            self.set(getattr(getattr(cache, "engine", None), "rope_deltas", None))
            try:
                yield
            finally:
                self.set(before)
