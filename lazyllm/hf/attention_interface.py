"""The attention that runs while LazyLLM is enabled, registered in transformers' interfaces next to `sdpa`."""

import copy
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lazyllm.core.attention import Kernel, WindowMask
from lazyllm.hf.images import WITHIN, AheadMask
from lazyllm.hf.refusals import refuse_if

NAME = "lazyllm"


def kernel_of(config: Any) -> Kernel:
    """The attention implementation that a model was loaded with, callable while its config names ours."""
    name, loaded = config._attn_implementation, copy.copy(config)
    # Eager attention would allocate the whole matrix; SDPA computes the same without.
    function = ALL_ATTENTION_FUNCTIONS["sdpa" if name == "eager" else name]

    def attend(module: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        return function(_AsLoaded(module, loaded), *args, **kwargs)[0]

    # PyTorch's leaves caps out, where transformers lets it.
    return Kernel(name, attend, name in ("sdpa", "eager"), name == "sdpa")


class _AsLoaded:
    """An attention module as its kernel expects it: with the config it was loaded with."""

    def __init__(self, module: nn.Module, config: Any) -> None:
        self._module = module
        self.config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


# The generation whose forward pass is under way.
CURRENT: ContextVar[Any] = ContextVar("lazyllm_step", default=None)


def _attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    step = CURRENT.get()
    refuse_if(step is None, "outside_pass")
    return step.attention(module, *args, **kwargs), None


def _mask(**kwargs: Any) -> WindowMask | AheadMask | None:
    step = CURRENT.get()
    if step is not None:
        return step.mask(**kwargs)
    refuse_if(WITHIN.get() is None, "outside_pass")
    return AheadMask(**kwargs)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
