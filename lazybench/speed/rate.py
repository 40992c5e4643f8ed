"""How much of the matrix rate of the device prefilling reaches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from lazybench.model.decoding import synchronize

_SIZE = {"cuda": 8192, "cpu": 1024}
_TRIES = 10


def matrix_rate(model: PreTrainedModel) -> float:
    """Operations a second of a large square matrix product in the model's dtype, on its device: the best of ten."""
    size = _SIZE.get(model.device.type, 1024)
    one, other = torch.randn(2, size, size, device=model.device, dtype=model.dtype)
    best = float("inf")
    for _ in range(_TRIES):
        synchronize(model.device)
        start = time.perf_counter()
        torch.matmul(one, other)
        synchronize(model.device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def prefill_operations(model: PreTrainedModel, layers: nn.ModuleList, counts: Sequence[int]) -> float | None:
    """Multiplications and additions of prefilling, were each layer the unmodified model's at its token count.

    Args:
        model: the model.
        layers: its decoder layers.
        counts: tokens in each of them.

    Returns:
        two for each weight of a matrix and token, and four for each dimension of a head and pair of tokens that
        attend to each other; None for a mixture of experts, of which a token meets a few.
    """
    if any(weight.ndim > 2 for weight in layers.parameters()):
        return None
    config = model.config.get_text_config()
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    operations = 0.0
    for layer, count in zip(layers, counts, strict=True):
        weights = sum(weight.numel() for weight in layer.parameters() if weight.ndim == 2)
        operations += 2.0 * weights * count + 4.0 * width * count * (count + 1) / 2
    return operations
