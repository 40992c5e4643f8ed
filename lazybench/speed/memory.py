"""What a pass takes: memory, in all and by step and layer, and the time of each operation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache

_MARK = "decoder layer "
_ROWS = 25


@dataclass(frozen=True)
class Memory:
    """Bytes above what was allocated before the pass.

    Attributes:
        peak: the most at once.
        peaks: by step and layer, the most while the layer ran; empty where the layers do not run once a step each.
        kv: by step and layer, those of its keys and values after it ran, where transformers' own cache holds them.
    """

    peak: int
    peaks: list[list[int]]
    kv: list[list[int]]


def measure(device: torch.device, layers: Sequence[nn.Module], run: Callable[[], object]) -> Memory:
    """The memory of an untimed `run` on `device`, of a model with these decoder layers, or none that are known."""
    gc.collect()
    spans = _Spans(device, len(layers))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        with spans.on(layers):
            run()
        peak = max([torch.cuda.max_memory_allocated(device), spans.between, *spans.peaks])
        return Memory(peak - before, spans.by_step([most - before for most in spans.peaks]), spans.kv_by_step())
    # A CPU's allocator keeps no such account, but the profiler is told of every allocation.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, spans.on(layers):
        run()
    events = profiler.profiler.kineto_results.events()
    allocations = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    times, sizes = np.array(allocations, dtype=np.int64).reshape(-1, 2).T
    held = np.concatenate([[0], sizes.cumsum()])  # before the first allocation, and after each
    marks = sorted((event.start_ns(), event.end_ns()) for event in events if event.name().startswith(_MARK))
    within = [(np.searchsorted(times, start), np.searchsorted(times, end, "right")) for start, end in marks]
    peaks = [int(held[first : last + 1].max()) for first, last in within]
    return Memory(int(held.max()), spans.by_step(peaks), spans.kv_by_step())


class _Spans:
    """Marks when each decoder layer runs. A layer that runs in two parts, one after the other, is one span."""

    def __init__(self, device: torch.device, layers: int) -> None:
        self._device, self._layers = device, layers
        self._order: list[int] = []  # the layer of each span
        self.peaks: list[int] = []
        self.between = 0  # the most that was allocated before, or between, layers
        self._kv: list[int | None] = []

    def by_step(self, values: Sequence[int]) -> list[list[int]]:
        """Values of the spans as steps of all layers, of a layer's parts the largest; none if layers were left out."""
        steps: list[list[int]] = []
        for layer, value in zip(self._order, values, strict=False):
            if steps and len(steps[-1]) == layer + 1:
                steps[-1][-1] = max(steps[-1][-1], value)
                continue
            if layer == 0:
                steps.append([])
            if not steps or len(steps[-1]) != layer:
                return []
            steps[-1].append(value)
        return steps if all(len(step) == self._layers for step in steps) else []

    def kv_by_step(self) -> list[list[int]]:
        """Bytes of keys and values by step and layer; none where a layer's are not known."""
        return [] if None in self._kv else self.by_step(self._kv)

    @contextmanager
    def on(self, layers: Sequence[nn.Module]) -> Iterator[None]:
        """Mark these layers. Hooks would make LazyLLM's engine go another way, so their `forward` is put aside."""
        own = [vars(layer).get("forward") for layer in layers]
        for index, layer in enumerate(layers):
            layer.forward = self._marked(index, layer.forward)
        try:
            yield
        finally:
            for layer, forward in zip(layers, own, strict=True):
                del layer.forward
                if forward is not None:
                    layer.forward = forward

    def _marked(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._device.type == "cuda":
                self.between = max(self.between, torch.cuda.max_memory_allocated(self._device))
                torch.cuda.reset_peak_memory_stats(self._device)
            self._order.append(index)
            try:
                with record_function(f"{_MARK}{index}"):
                    return forward(*args, **kwargs)
            finally:
                if self._device.type == "cuda":
                    self.peaks.append(torch.cuda.max_memory_allocated(self._device))
                self._kv.append(_kv_bytes([*args, *kwargs.values()], index))

        run.__wrapped__ = forward
        return run


def _kv_bytes(given: Sequence[object], layer: int) -> int | None:
    """Bytes of a layer's keys and values in transformers' cache, where it is among what the layer was given."""
    cache = next((value for value in given if type(value) is DynamicCache), None)
    if cache is None or layer >= len(cache.layers) or not cache.layers[layer].is_initialized:
        return None
    return cache.layers[layer].keys.nbytes + cache.layers[layer].values.nbytes


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
