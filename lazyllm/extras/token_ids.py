"""Token ids of one text, as functions of the library are given them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from lazyllm.core.errors import LazyLLMError
from lazyllm.hf.refusals import refuse_if

Ids = torch.Tensor | Sequence[int]


def text_ids(model: PreTrainedModel, name: str, given: Any) -> torch.Tensor:
    """Token ids, int64 (1, n), where the model takes them; `LazyLLMError` where `given` are not those of one text."""
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
    largest = model.config.get_text_config().vocab_size - 1
    if not 0 <= int(ids.min()) <= int(ids.max()) <= largest:
        raise LazyLLMError(f"{name} must hold ids of the model's vocabulary, 0 to {largest}")
    # Where weights are offloaded, hooks move them to where they are needed.
    return ids.cpu() if model.device.type == "meta" else ids.to(model.device)


def check_ready(model: PreTrainedModel, doing: str) -> None:
    """Raise `LazyLLMError` for a model in training mode, or one whose prompt learning puts tokens before each pass."""
    if model.training:
        raise LazyLLMError(f"the model is in training mode: call model.eval() before {doing}")
    adapter = getattr(model, "active_peft_config", None)
    refuse_if(getattr(adapter, "is_prompt_learning", False), "virtual_tokens_in_passes", model=model)
