"""The attention that runs while LazyLLM is enabled, registered in transformers' interfaces next to `sdpa`."""

from __future__ import annotations

import copy
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lazyllm.core.attention import WindowMask
from lazyllm.hf.images import WITHIN, AheadMask
from lazyllm.hf.refusals import refusal

NAME = "lazyllm"


class FusedAttention:
    """The attention implementation the model was loaded with, callable while the config names ours."""

    def __init__(self, config: Any) -> None:
        self.name = config._attn_implementation
        # Eager attention would allocate the whole matrix; SDPA computes the same without.
        self._function = ALL_ATTENTION_FUNCTIONS["sdpa" if self.name == "eager" else self.name]
        self._config = copy.copy(config)
        self.is_sdpa = self.name in ("sdpa", "eager")
        self.caps_scores = self.name.startswith("flash_attention")
        self.ignores_softcap = self.name == "sdpa"  # it leaves caps out, where transformers lets it

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._function(_AsLoaded(module, self._config), *args, **kwargs)[0]


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
    if step is None:
        raise refusal("outside_pass")
    return step.attention(module, *args, **kwargs), None


def _mask(**kwargs: Any) -> WindowMask | AheadMask | None:
    step = CURRENT.get()
    if step is not None:
        return step.mask(**kwargs)
    if WITHIN.get() is not None:
        return AheadMask(**kwargs)
    raise refusal("outside_pass")


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
