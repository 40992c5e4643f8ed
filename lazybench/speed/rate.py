"""How much of the matrix rate of the device prefilling reaches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from lazybench.model.decoding import synchronize
from lazybench.speed.subjects import Subjects

_SIZE, _SIZE_ON_A_GPU = 1024, 8192
_TRIES = 10


def matrix_rate(model: PreTrainedModel) -> float:
    """Operations a second of a large square matrix product in the model's dtype, on its device: the best of ten."""
    size = _SIZE_ON_A_GPU if model.device.type == "cuda" else _SIZE
    one, other = torch.randn(2, size, size, device=model.device, dtype=model.dtype)
    best = float("inf")
    for _ in range(_TRIES):
        synchronize(model.device)
        start = time.perf_counter()
        torch.matmul(one, other)
        synchronize(model.device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def matrix_shares(subjects: Subjects, row: Mapping[str, float], rate: float) -> dict[str, float]:
    """The share of the matrix rate that prefilling reaches.

    Its work is two operations for each matrix weight and token, and four for each head dimension and attending pair,
    with each layer counted at its own number of tokens.

    Args:
        subjects: what was timed.
        row: its times, `ttft_s` and `method_ttft_s`.
        rate: what `matrix_rate` gives.

    Returns:
        `unmodified_matrix_share` and, for a method with a schedule, `method_matrix_share`; neither for a mixture of
        experts, of which a token meets a few, or a model whose layers are not known.
    """
    model = subjects.decode.model
    layers = subjects.layers
    if not layers or any(weight.ndim > 2 for layer in layers for weight in layer.parameters()):
        return {}
    timed = [("unmodified", [subjects.prompt.ids.shape[1]] * len(layers), row["ttft_s"])]
    if subjects.counts is not None:
        timed.append(("method", subjects.counts, row["method_ttft_s"]))
    return {f"{name}_matrix_share": _operations(model, layers, counts) / s / rate for name, counts, s in timed}


def _operations(model: PreTrainedModel, layers: Sequence[nn.Module], counts: Sequence[int]) -> float:
    """Multiplications and additions of prefilling with so many tokens in each layer."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    operations = 0.0
    for layer, count in zip(layers, counts, strict=True):
        weights = sum(weight.numel() for weight in layer.parameters() if weight.ndim == 2)
        operations += 2.0 * weights * count + 4.0 * width * count * (count + 1) / 2
    return operations
