"""The memory that an answer allocates."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache, PreTrainedModel

from lazybench.methods import Output


def measure_memory(model: PreTrainedModel, run: Callable[[], Output]) -> tuple[int, int | None]:
    """Measure the memory of an answer of `model`.

    Returns:
        The most bytes allocated at once, beyond those allocated before; and the size of the KV cache after prefill in
        bytes, None if it is not known.
    """
    gc.collect()
    kv_bytes: list[int] = []  # after each forward call
    hook = model.register_forward_hook(lambda *call: kv_bytes.extend(_kv_bytes(call[-1])))
    try:
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(model.device)
            before = torch.cuda.memory_allocated(model.device)
            output = run()
            peak = torch.cuda.max_memory_allocated(model.device) - before
        else:  # a CPU's allocator keeps no statistics, but the profiler records every allocation
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                output = run()
            events = profiler.profiler.kineto_results.events()
            allocations = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
            peak = int(np.cumsum([size for _, size in allocations]).max(initial=0))
    finally:
        hook.remove()
    if output.stats is not None:  # LazyLLM's engine keeps a cache of its own
        kv_bytes = output.stats.kv_bytes.sum(1).tolist()
    kv_bytes = kv_bytes[-len(output.tokens) :]  # a method may prefill twice
    return peak, kv_bytes[0] if kv_bytes else None


def _kv_bytes(output: Any) -> list[int]:
    """Return the size of the cache in a forward call's output; nothing for another cache than transformers' own."""
    cache = getattr(output, "past_key_values", None)
    if not isinstance(cache, DynamicCache):
        return []
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    return [sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)]
