"""Puts LazyLLM in the way of a model's own methods, and takes it out again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from lazyllm.hf.refusals import refusal


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
    if not args:
        return kwargs
    return {**dict(zip(inspect.signature(method).parameters, args, strict=False)), **kwargs}
