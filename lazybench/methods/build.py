"""Makes a method of its settings."""

from __future__ import annotations

from typing import Any

from hydra.utils import instantiate

from lazybench.config import check_name
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method


def build_method(settings: dict[str, Any]) -> Method:
    """The method that a config's `method` describes.

    Raises:
        LazyBenchError: `_target_` does not name a `Method`.
    """
    target = settings.get("_target_")
    if not target:
        raise LazyBenchError("method has no _target_: name a class such as lazybench.methods.lazyllm.LazyLLM")
    method = instantiate(settings, _convert_="all")
    if not isinstance(method, Method):
        raise LazyBenchError(f"method._target_={target} is not a lazybench.methods.Method")
    check_name("method.name", method.name)
    if not isinstance(method.repeats, int) or method.repeats < 1:
        raise LazyBenchError(f"method.repeats={method.repeats} is out of range: at least 1")
    return method
