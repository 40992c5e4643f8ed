"""Token ids of one text, as functions of the library are given them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from lazyllm.core.errors import LazyLLMError

Ids = torch.Tensor | Sequence[int]


def text_ids(name: str, given: Any) -> torch.Tensor:
    """Token ids, int64 (1, n), on the CPU; `LazyLLMError` where `given`, called `name`, is not those of one text."""
    try:
        ids = given if isinstance(given, torch.Tensor) else torch.tensor(list(given))
    except (TypeError, ValueError, RuntimeError):
        ids = torch.empty(0, 0, 0)
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or len(ids) != 1 or (ids.numel() and ids.dtype != torch.int64):
        raise LazyLLMError(
            f"{name} must be token ids of one text, a list such as [5, 6] or int64 of shape (n,) or (1, n), not "
            f"{type(given).__name__} {str(given)[:40]!r}"
        )
    if not ids.numel():
        raise LazyLLMError(f"{name} must hold a token, as a text without a prompt begins with BOS")
    return ids.cpu()


def check_vocabulary(model: PreTrainedModel, *texts: torch.Tensor) -> None:
    """Raise `LazyLLMError` for ids that the model has no embedding of."""
    largest = model.config.get_text_config().vocab_size - 1
    if any(int(text.min()) < 0 or int(text.max()) > largest for text in texts):
        raise LazyLLMError(f"there are ids that are not in the model's vocabulary, 0 to {largest}")


def placed(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """The ids where the model takes them; where weights are offloaded, hooks move them to where they are needed."""
    return ids if model.device.type == "meta" else ids.to(model.device)
