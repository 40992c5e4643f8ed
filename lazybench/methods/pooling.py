"""Averages of neighbouring scores, as GemFilter and FastKV take them."""

from __future__ import annotations

import torch
from torch import nn

from lazybench.errors import LazyBenchError


def check_pooling(pooling: object) -> None:
    """Raise `LazyBenchError` unless `pooling` can be the number of neighbours in an average."""
    if not isinstance(pooling, int) or isinstance(pooling, bool) or pooling < 1 or pooling % 2 == 0:
        raise LazyBenchError(f"method.pooling={pooling} must be an odd number, at least 1")


def pooled(scores: torch.Tensor, pooling: int) -> torch.Tensor:
    """The mean of each score (rows, tokens) and its neighbours, zeros beyond the ends."""
    return nn.functional.avg_pool1d(scores[None], pooling, stride=1, padding=pooling // 2)[0]
