"""The attention of an enabled model, registered in transformers' interfaces next to `sdpa`."""

import copy
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lazyllm.core.attention import Kernel
from lazyllm.core.errors import LazyLLMError
from lazyllm.hf.private import attention_implementation

NAME = "lazyllm"
# In this context: the engine whose decoder is running, and the `ModelPatches` of the running model.
CURRENT_ENGINE: ContextVar[Any] = ContextVar("lazyllm_engine", default=None)
CURRENT_MODEL: ContextVar[Any] = ContextVar("lazyllm_model", default=None)
# Stands for a causal mask that a model of text and images passes to its decoder, which then makes its own mask.
CAUSAL_MASK = object()
NOT_CAUSAL = (
    "the attention mask is not plainly causal, as when tokens of an image see each other: give a text, without "
    "token_type_ids"
)
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
    if not kwargs["allow_is_causal_skip"]:
        raise LazyLLMError(NOT_CAUSAL)
    return CAUSAL_MASK


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
