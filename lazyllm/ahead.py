"""Masks that a model of text and images makes ahead of its decoder, which gets them in place of the padding's."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from lazyllm.errors import LazyLLMError

# Whether the forward pass of a whole model under lazyllm.enable is under way.
WITHIN: ContextVar[bool] = ContextVar("lazyllm_model", default=False)

_BLOCK_ELEMENTS = 1 << 22


class AheadMask:
    """What stands for such a mask: how it was to be made (transformers' mask interface)."""

    def __init__(self, **kwargs: Any) -> None:
        self.padding: torch.Tensor | None = kwargs["attention_mask"]
        self._asked = kwargs

    def is_plain(self, window: int | None) -> bool:
        """Whether who sees whom is causality's, within a window if there is one; reads the device once a block."""
        asked = self._asked
        if asked["allow_is_causal_skip"]:
            return True  # without anything that the model adds to it
        plain = causal_mask_function if window is None else sliding_window_causal_mask_function(window)
        queries = torch.arange(asked["q_length"], device=asked["device"]) + asked["q_offset"]
        keys = torch.arange(asked["kv_length"], device=asked["device"]) + asked["kv_offset"]
        for rows in queries[:, None].split(max(1, _BLOCK_ELEMENTS // len(keys))):
            expected = plain(0, 0, rows, keys[None])
            for sequence in range(asked["batch_size"]):
                if not torch.equal(asked["mask_function"](sequence, 0, rows, keys[None]), expected):
                    return False
        return True


def without(mask: Any, window: int | None) -> Any:
    """The mask of the padding, (sequences, tokens) or None, that masks made ahead were made of, if `mask` is of those.

    The decoder makes the same from it. `window` is that of its layers with sliding attention.

    Raises:
        LazyLLMError: the masks say more than that.
    """
    masks = mask if isinstance(mask, dict) else {"": mask}
    if not masks or not all(isinstance(made, AheadMask) for made in masks.values()):
        return mask
    if not all(made.is_plain(window if kind == "sliding_attention" else None) for kind, made in masks.items()):
        raise LazyLLMError(
            "the model's attention mask is not plainly causal, as where the tokens of an image see each other: LazyLLM "
            "cannot prune under it"
        )
    return next(iter(masks.values())).padding
