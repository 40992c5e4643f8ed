"""What torch's profiler tells of a pass: the memory it takes, and the operations that take its time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

_ROWS = 25


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
    allocations = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(allocations, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def write_profile(device: torch.device, passes: Mapping[str, Callable[[], object]], path: Path) -> None:
    """Profile each pass and write a table of its operations, by their own time.

    Args:
        device: where the model is.
        passes: what to profile, by title.
        path: text file to write.
    """
    activities, key = [ProfilerActivity.CPU], "self_cpu_time_total"
    if device.type == "cuda":
        activities, key = [*activities, ProfilerActivity.CUDA], "self_cuda_time_total"
    parts = []
    for title, run in passes.items():
        with profile(activities=activities) as profiler:
            run()
        parts.append(f"{title}\n{profiler.key_averages().table(sort_by=key, row_limit=_ROWS)}\n")
    path.write_text("\n".join(parts))
