"""The memory that a pass allocates."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache, PreTrainedModel

from lazybench.run.timing import Pass


@dataclass(frozen=True)
class Memory:
    """Memory of a pass, in bytes.

    Attributes:
        peak: the most allocated at once, beyond what was allocated before the pass.
        prompt_kv: size of the KV cache after prefill; None where it is not known.
    """

    peak: int
    prompt_kv: int | None


def measure_memory(model: PreTrainedModel, run: Callable[[], Pass]) -> Memory:
    """Return the memory of an untimed pass of `model`."""
    gc.collect()
    kv_bytes: list[int] = []  # after each forward call
    hook = model.register_forward_hook(lambda *call: kv_bytes.extend(_kv_bytes(call[-1])))
    try:
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(model.device)
            before = torch.cuda.memory_allocated(model.device)
            output = run().output
            peak = torch.cuda.max_memory_allocated(model.device) - before
        else:  # a CPU's allocator keeps no statistics, but the profiler records every allocation
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                output = run().output
            events = profiler.profiler.kineto_results.events()
            allocations = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
            sizes = np.array(allocations, dtype=np.int64).reshape(-1, 2)[:, 1]
            peak = int(sizes.cumsum().max(initial=0))
    finally:
        hook.remove()
    if output.stats is not None:  # LazyLLM's engine keeps a cache of its own
        kv_bytes = output.stats.kv_bytes.sum(1).tolist()
    kv_bytes = kv_bytes[-len(output.tokens) :]  # a method may prefill twice
    return Memory(peak, kv_bytes[0] if kv_bytes else None)


def _kv_bytes(output: Any) -> list[int]:
    """Return the size of the cache in a forward call's output; nothing for another cache than transformers' own."""
    cache = getattr(output, "past_key_values", None)
    if not isinstance(cache, DynamicCache):
        return []
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    return [sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)]
