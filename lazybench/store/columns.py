"""The columns of a run's rows that hold times, in seconds."""

from __future__ import annotations

from collections.abc import Sequence

WALL_TIMES = ("ttft_s", "generation_s", "decode_step_s")
CPU_TIMES = ("ttft_cpu_s", "generation_cpu_s")


def with_compared(times: Sequence[str]) -> tuple[str, ...]:
    """The method's `times`, then those of the unmodified model, then those of its engine with nothing pruned."""
    return tuple(f"{whose}{time}" for whose in ("", "baseline_", "keep_1_") for time in times)
