"""What torch's profiler tells of a pass: the operations that take its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

_ROWS = 25


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
