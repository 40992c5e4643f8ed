"""Running out of memory: what it looks like, and how to go on after it."""

from __future__ import annotations

import gc

import torch

# What a plain RuntimeError says where memory ran out: the CPU's allocator, the driver, cuBLAS.
_SAYS = ("DefaultCPUAllocator: can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def ran_out(error: BaseException) -> bool:
    """Whether `error` means that memory ran out, on an accelerator or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _SAYS)


def release() -> None:
    """Give back what a failed pass held.

    Call it once the exception is handled: its traceback keeps the pass's frames, and they its tensors.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
