"""How much memory a pass takes."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

_MEMORY_EVENT = "[memory]"


def peak_bytes(device: torch.device, run: Callable[[], object]) -> int:
    """Most bytes allocated on `device` at once during an untimed `run`, above what was before it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    # A CPU's allocator keeps no such account, but the profiler is told of every allocation.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    allocations = [event for event in profiler.profiler.kineto_results.events() if event.name() == _MEMORY_EVENT]
    held = most = 0
    for event in sorted(allocations, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
