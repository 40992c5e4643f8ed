"""On what, and in which dtype, a model computes."""

from __future__ import annotations

import torch

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError, first_line


def device_of(config: ModelConfig) -> torch.device:
    """The device the model runs on.

    Raises:
        LazyBenchError: it is not available here.
    """
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(config.device)
    except RuntimeError:
        raise LazyBenchError(f"model.device={config.device} is no device: use auto, cpu, cuda or cuda:1") from None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise LazyBenchError(
            f"model.device={config.device} is not available here: {_why(device, error)}; use model.device=cpu or auto"
        ) from None
    return device


def _why(device: torch.device, error: Exception) -> str:
    """Why there is no such device."""
    if device.type != "cuda":
        return f"this PyTorch does not run on {device.type}"
    if not torch.backends.cuda.is_built():
        return "this PyTorch has no CUDA"
    if not (count := torch.cuda.device_count()):
        return "no NVIDIA driver, or no GPU, was found"
    return f"the last GPU is cuda:{count - 1}" if (device.index or 0) >= count else first_line(error)


def dtype_of(config: ModelConfig) -> torch.dtype:
    """The dtype the model computes in."""
    if config.dtype == "auto":
        return torch.bfloat16 if device_of(config).type == "cuda" else torch.float32
    return getattr(torch, config.dtype)
