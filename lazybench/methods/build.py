"""Makes a method of its settings."""

from __future__ import annotations

from typing import Any

from lazybench.config import check_name
from lazybench.errors import LazyBenchError
from lazybench.methods.base import Method
from lazybench.model.instance import make


def build_method(settings: dict[str, Any]) -> Method:
    """The method that a config's `method` describes.

    Raises:
        LazyBenchError: `_target_` does not name a `Method`, or it refuses its settings.
    """
    method = make("method", settings, "a class such as lazybench.methods.lazyllm.LazyLLM")
    if not isinstance(method, Method):
        raise LazyBenchError(f"method._target_={settings['_target_']} is not a lazybench.methods.Method")
    check_name("method.name", method.name)
    if not isinstance(method.repeats, int) or method.repeats < 1:
        raise LazyBenchError(f"method.repeats={method.repeats} is out of range: at least 1")
    _ = method.appearance  # raises where it is out of range
    return method
