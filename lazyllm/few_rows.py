"""Linear layers of few rows, as decoding steps have them, computed in the way that takes a CPU's library least time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from lazyllm.detour import Detour

# Up to the first MKL is fastest with the factors swapped; from there to the second oneDNN takes half of MKL's time.
_VERY_FEW, _FEW = 4, 128


class _LinearDetour(Detour):
    """A detour that changes no result: a copy of the module goes without it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.original.__reduce_ex__(protocol)


def detours(model: nn.Module) -> list[Detour]:
    """Detours of a model's linear layers of plain float32 weights on a CPU, where PyTorch has both MKL and oneDNN."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return []
    modules = [module for module in model.modules() if type(module) is nn.Linear]
    return [
        _LinearDetour(module, "forward", partial(_linear, module))
        for module in modules
        if "forward" not in vars(module) and _is_plain(module.weight)
    ]


@contextmanager
def fast(model: nn.Module) -> Iterator[None]:
    """Within it a model computes few rows as where LazyLLM prunes: to tell what that alone gains."""
    placed = detours(model)
    try:
        yield
    finally:
        for detour in placed:
            detour.remove()


def _is_plain(weight: object) -> bool:
    if type(weight) is not nn.Parameter:
        return False
    return weight.is_cpu and weight.dtype == torch.float32 and weight.layout == torch.strided


def _linear(module: nn.Linear, forward: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """`module(rows)`; of few rows in the way that is fastest, most often not PyTorch's own.

    A single row is computed twice: for one alone MKL takes a routine that runs on a single core.
    """
    *shape, width = rows.shape
    count = math.prod(shape)
    # Both are missing where a parametrization came meanwhile.
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if not 0 < count <= _FEW or rows.dtype != torch.float32 or not rows.is_cpu or not _is_plain(weight):
        return forward(rows)
    # What oneDNN's operator knows nothing of, and what forbids it.
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled:
        return forward(rows)
    flat = rows.reshape(count, width)
    if count > _VERY_FEW:
        product = torch.ops.mkldnn._linear_pointwise(flat, weight, bias, "none", [], "")
        return product.view(*shape, -1)
    if count == 1:
        product = nn.functional.linear(weight, torch.cat([flat, flat]))[:, 0].contiguous()
    else:
        product = nn.functional.linear(weight, flat).t().contiguous()
    product = product.view(*shape, -1)
    return product if bias is None else product + bias
