"""The attention that runs while LazyLLM is enabled: the model's own fused kernel, over the active tokens.

Registered under one name in transformers' attention and mask interfaces, next to `sdpa` and the others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lazyllm.ahead import WITHIN, AheadMask
from lazyllm.errors import LazyLLMError
from lazyllm.ranking import softmax_with

NAME = "lazyllm"


class EnabledName(str):
    """The name as a model's config holds it while LazyLLM is enabled; a copy of the config has its own one again."""

    own: str

    def __new__(cls, own: str) -> EnabledName:
        name = super().__new__(cls, NAME)
        name.own = own
        return name

    def __reduce_ex__(self, protocol: Any) -> tuple[type[str], tuple[str]]:
        return str, (self.own,)


# Query rows are taken in blocks so that no block's scores or mask have more elements than this.
_BLOCK_ELEMENTS = 1 << 24

MaskFunction = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class WindowMask:
    """In place of a mask tensor, of rows by tokens: a layer sees a window or chunk of positions, not all earlier ones.

    `visible` says who sees whom, and `window` how many positions a token sees.
    """

    visible: MaskFunction
    window: int


def causal(batch: int, head: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Which positions a query sees without a window: its own and earlier ones."""
    return key <= query


class FusedAttention:
    """The attention implementation the model was loaded with, callable while the config names ours."""

    def __init__(self, config: Any) -> None:
        self.name = config._attn_implementation
        # Eager attention would allocate the whole matrix; SDPA computes the same without.
        self._function = ALL_ATTENTION_FUNCTIONS["sdpa" if self.name == "eager" else self.name]
        self._config = copy.copy(config)

    @property
    def is_sdpa(self) -> bool:
        """Whether it is PyTorch's fused attention."""
        return self.name in ("sdpa", "eager")

    @property
    def caps_scores(self) -> bool:
        """Whether the kernel itself can cap attention scores."""
        return self.name.startswith("flash_attention")

    @property
    def ignores_softcap(self) -> bool:
        """Whether the unmodified model runs without its cap: SDPA leaves it out, where transformers lets it."""
        return self.name == "sdpa"

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._function(_AsLoaded(module, self._config), *args, **kwargs)[0]


class _AsLoaded:
    """An attention module as its kernel expects it: with the config it was loaded with."""

    def __init__(self, module: nn.Module, config: Any) -> None:
        self._module = module
        self.config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def attend_in_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: tuple[torch.Tensor, torch.Tensor],
    present: torch.Tensor | None,
    visible: MaskFunction,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention where plain causality by index does not say who sees whom: revived rows, windows, capped scores, sinks.

    Args:
        query, key, value: (1, heads, rows, head_dim), (1, kv_heads, n, head_dim), (1, kv_heads, n, value_dim).
        positions: the queries', int64 (rows,), sorted, and the keys', int64 (n,), sorted in prefilling.
        present: which of the keys take part, bool (n,); None means all of them.
        visible: says for positions (rows, 1) and (1, n) who sees whom, bool (rows, n).
        scaling, softcap, sinks: see `lazyllm.attention_on`.

    Returns:
        (1, rows, heads, value_dim), contiguous.
    """
    heads, rows = query.shape[1:3]
    prefilling = rows == key.shape[2]
    output = query.new_empty(query.shape[0], rows, heads, value.shape[-1])
    # Fused attention under a mask holds one mask for all heads on a CPU, and no scores.
    held = heads if softcap is not None or sinks is not None or query.device.type != "cpu" else 1
    size = max(1, _BLOCK_ELEMENTS // (key.shape[2] * held))
    for start in range(0, rows, size):
        block = slice(start, min(start + size, rows))
        # In prefilling, tokens behind the block are out of its sight.
        sight = slice(block.stop if prefilling else None)
        part, seen, weighed = query[:, :, block], key[:, :, sight], value[:, :, sight]
        mask = visible(0, 0, positions[0][block, None], positions[1][None, sight])
        if present is not None:
            mask = mask & present
        output[:, block] = attend_masked(part, seen, weighed, mask, scaling, softcap, sinks).transpose(1, 2)
    return output


def attend_masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention under a mask, bool (rows, n) or None, (1, heads, rows, value_dim); shared heads are not copied."""
    plain = softcap is None and sinks is None
    if plain and (mask is None or query.device.type == "cpu"):
        mask = None if mask is None else mask[None, None]
        shared = query.shape[1] != key.shape[1]
        return nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=shared)
    # Elsewhere no fused kernel takes both a mask and shared heads: the heads of a group become rows of one head.
    batch, heads, rows, width = query.shape
    groups = heads // key.shape[1]
    query = query.reshape(batch, key.shape[1], groups * rows, width)
    mask = mask.repeat(groups, 1)
    if plain:
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[None, None], scale=scaling
        )
    else:
        exact = torch.float64 if query.dtype == torch.float64 else torch.float32
        # Capped scores are small; beside sinks there are models that count on exact ones.
        dtype = query.dtype if sinks is None else exact
        scores = torch.matmul(query.to(dtype), key.to(dtype).transpose(-1, -2)) * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~mask, float("-inf"))
        if sinks is None:
            weights = scores.softmax(dim=-1, dtype=exact)
        else:
            weights = softmax_with(sinks.view(1, key.shape[1], groups).repeat_interleave(rows, dim=2), scores)
        attended = torch.matmul(weights.to(query.dtype), value)
    return attended.reshape(batch, heads, rows, value.shape[-1])


def fits_one_block(heads: int, rows: int, columns: int) -> bool:
    """Whether all scores of an attention are few enough to be held at once."""
    return heads * rows * columns <= _BLOCK_ELEMENTS


CURRENT: ContextVar[Any] = ContextVar("lazyllm_step", default=None)
"""The forward pass under way, found here by the functions that transformers calls."""


def _attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    step = CURRENT.get()
    if step is None:
        raise LazyLLMError(
            "a layer was called outside the forward pass of a model under lazyllm.enable, or is that of another model "
            "with the same config object: give each model a config of its own"
        )
    return step.attend(module, *args, **kwargs), None


def _mask(**kwargs: Any) -> WindowMask | AheadMask | None:
    step = CURRENT.get()
    if step is not None:
        return step.mask(**kwargs)
    if WITHIN.get():
        return AheadMask(**kwargs)
    raise LazyLLMError(
        "an attention mask was made outside the forward pass of a model under lazyllm.enable: by a cache of fixed size "
        "(leave out cache_implementation), or by another model with the same config object (give each its own)"
    )


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
