"""Pooling and second models, shared by several methods."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError, prefix_errors
from lazybench.rules import MODEL


def pool(scores: torch.Tensor, size: int, kernel: str = "average") -> torch.Tensor:
    """Pool scores (rows, tokens) over `size` neighbours, zeros beyond the ends: their average, or `max`."""
    function = nn.functional.max_pool1d if kernel == "max" else nn.functional.avg_pool1d
    return function(scores[None], size, stride=1, padding=size // 2)[0]


def second_models(method: Any, load: Callable[[ModelConfig], Any], device: str = "auto") -> dict[str, Any]:
    """Call `load` for each model that a method's settings name, such as a scorer; return the results by setting.

    A `LazyBenchError` that `load` raises gets the name of the setting.
    """
    loaded = {}
    for setting in fields(method):
        path = getattr(method, setting.name)
        if setting.metadata.get("rule") is MODEL and path is not None:
            with prefix_errors(f"method.{setting.name}", LazyBenchError):
                # The limit is about prompts of the model under test.
                loaded[setting.name] = load(ModelConfig(name=setting.name, path=path, device=device, limit=2))
    return loaded
