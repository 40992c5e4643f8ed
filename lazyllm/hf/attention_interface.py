"""The attention of an enabled model, registered in transformers' interfaces next to `sdpa`."""

import copy
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lazyllm.core.attention import BLOCK_ELEMENTS, Kernel
from lazyllm.core.errors import LazyLLMError
from lazyllm.hf.private import attention_implementation

NAME = "lazyllm"
# In this context: the engine whose decoder is running, and the `ModelPatches` of the running model.
CURRENT_ENGINE: ContextVar[Any] = ContextVar("lazyllm_engine", default=None)
CURRENT_MODEL: ContextVar[Any] = ContextVar("lazyllm_model", default=None)
# Stands for a causal mask that a model of text and images passes to its decoder, which then makes its own mask.
CAUSAL_MASK = object()
NOT_CAUSAL = "the attention mask is not plainly causal, as when image tokens see each other: this is not supported"
_OUTSIDE = (
    "attention under lazyllm.enable ran outside the model's forward pass: leave out cache_implementation, and give "
    "another model its own config object"
)


def loaded_kernel(config: Any) -> Kernel:
    """Return the attention that a model was loaded with, callable while its config names LazyLLM's."""
    name, loaded = attention_implementation(config), copy.copy(config)
    # Eager attention would allocate the full matrix; SDPA computes the same without.
    function = ALL_ATTENTION_FUNCTIONS["sdpa" if name == "eager" else name]

    def attend(module: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        return function(_AsLoaded(module, loaded), *args, **kwargs)[0]

    return Kernel(name, attend, name in ("sdpa", "eager"))


class _AsLoaded:
    """An attention module with the config it was loaded with, as its kernel expects it."""

    def __init__(self, module: nn.Module, config: Any) -> None:
        self._module, self.config = module, config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    if (engine := CURRENT_ENGINE.get()) is None:
        raise LazyLLMError(_OUTSIDE)
    return engine.attention(module, *args, **kwargs), None


def _mask(**kwargs: Any) -> Any:
    if (engine := CURRENT_ENGINE.get()) is not None:
        return engine.mask(**kwargs)
    if CURRENT_MODEL.get() is None:
        raise LazyLLMError(_OUTSIDE)
    # Some models express a window as a full mask with one more condition.
    windows = None, kwargs.get("local_size"), getattr(kwargs["config"], "sliding_window", None)
    if not kwargs["allow_is_causal_skip"] and not any(
        _is_causal(window, **kwargs) for window in dict.fromkeys(windows)
    ):
        raise LazyLLMError(NOT_CAUSAL)
    return CAUSAL_MASK


def _is_causal(window: int | None, mask_function: Any, device: torch.device, **sizes: Any) -> bool:
    """Return whether a mask is causal, within a window if there is one; reads the device once per block."""
    causal: Any = causal_mask_function if window is None else sliding_window_causal_mask_function(window)
    queries = torch.arange(sizes["q_length"], device=device) + sizes["q_offset"]
    keys = torch.arange(sizes["kv_length"], device=device) + sizes["kv_offset"]
    batch = torch.arange(sizes["batch_size"], device=device)[:, None, None]
    blocks = queries[:, None].split(max(1, BLOCK_ELEMENTS // (len(batch) * len(keys))))
    return all(bool((mask_function(batch, 0, rows, keys) == causal(0, 0, rows, keys)).all()) for rows in blocks)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
