"""The device and dtype that a model computes in, and what to do when memory runs out."""

import gc

import torch

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError, first_line

# Messages of a plain RuntimeError when memory runs out: the CPU's allocator, the driver, cuBLAS.
_OUT_OF_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def device_of(config: ModelConfig) -> torch.device:
    """Return the device the model runs on; `LazyBenchError` if it is not available."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=config.device).device
    except (RuntimeError, AssertionError, ImportError) as error:
        raise LazyBenchError(
            f"model.device={config.device} is not available here: {first_line(error)}; use model.device=cpu or auto"
        ) from None


def dtype_of(config: ModelConfig) -> torch.dtype:
    """Return the dtype the model computes in."""
    if config.dtype == "auto":
        return torch.bfloat16 if device_of(config).type == "cuda" else torch.float32
    return getattr(torch, config.dtype)


def ran_out(error: BaseException) -> bool:
    """Return whether `error` means that memory ran out, on an accelerator or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def release() -> None:
    """Free the memory of a failed pass.

    Call it after the exception is handled: its traceback keeps the frames of the pass, and these its tensors.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
