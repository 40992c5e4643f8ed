"""What a pass takes: memory, and the time of each operation."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache, PreTrainedModel

_ROWS = 25


@dataclass(frozen=True)
class Memory:
    """Bytes that a pass takes."""

    peak: int  # the most at once, above what was allocated before
    kv: list[int]  # of keys and values after each forward call, where transformers' own cache holds them


def measure(model: PreTrainedModel, run: Callable[[], object]) -> Memory:
    """The memory of an untimed `run` of a model."""
    gc.collect()
    kv: list[int] = []
    hook = model.register_forward_hook(lambda *given: kv.extend(_kv_bytes(given[-1])))
    try:
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(model.device)
            before = torch.cuda.memory_allocated(model.device)
            run()
            return Memory(torch.cuda.max_memory_allocated(model.device) - before, kv)
        # A CPU's allocator keeps no such account, but the profiler is told of every allocation.
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            run()
    finally:
        hook.remove()
    events = profiler.profiler.kineto_results.events()
    allocations = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    sizes = np.array(allocations, dtype=np.int64).reshape(-1, 2)[:, 1]
    return Memory(int(sizes.cumsum().max(initial=0)), kv)


def _kv_bytes(output: Any) -> list[int]:
    """Bytes of the keys and values in transformers' cache behind a forward call; none where they are elsewhere."""
    cache = getattr(output, "past_key_values", None)
    if not isinstance(cache, DynamicCache):
        return []
    held = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    return [sum(layer.keys.nbytes + layer.values.nbytes for layer in held)]


def write_profile(device: torch.device, passes: Mapping[str, Callable[[], object]], path: Path) -> None:
    """Profile each pass, given by title, on `device`, and write a table of its operations by their own time."""
    activities, key = [ProfilerActivity.CPU], "self_cpu_time_total"
    if device.type == "cuda":
        activities, key = [*activities, ProfilerActivity.CUDA], "self_cuda_time_total"
    parts = []
    for title, run in passes.items():
        with profile(activities=activities) as profiler:
            run()
        parts.append(f"{title}\n{profiler.key_averages().table(sort_by=key, row_limit=_ROWS)}\n")
    path.write_text("\n".join(parts))
