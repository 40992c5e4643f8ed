"""`lazybench speed`: measure every prompt length, then show a table, and write it, a plot and a profile."""

import os
from functools import partial
from pathlib import Path

from lazybench.analysis.console import frame_table
from lazybench.config import SpeedConfig
from lazybench.errors import LazyBenchError
from lazybench.model.device import device_of
from lazybench.report.figures import speedups
from lazybench.speed import host
from lazybench.speed.measures import MEMORY_TOKENS, METHOD, STEPS, WHOLE, Subjects, measure, steps_column, subjects_of
from lazybench.speed.memory import write_profile
from lazybench.store.writing import writing


def main(config: SpeedConfig) -> int:
    """Measure, print the table, and write CSV, plot and profile where asked to; or print the host's time alone."""
    output, profile = (_writable(key, getattr(config, key)) for key in ("output", "profile"))
    if config.host:
        print(f"a random Llama: {host.LAYERS} layers of width {host.WIDTH}, {host.TOKENS:,} tokens, one thread")
        measured = host.measure(device_of(config.model))
        print(frame_table(measured, _HOST))
        if output is not None:
            measured.to_csv(output, index=False, float_format="%.5g")
        return 0
    subjects = subjects_of(config)
    measured = measure(config, subjects)
    reduction = measured["memory_mb"] / measured["method_memory_mb"]
    kv_share = measured["method_prompt_kv_mb"].astype(float) / measured["prompt_kv_mb"].astype(float)
    shown = measured.assign(
        memory_reduction=reduction, kv_share=kv_share, decode_step_ms=1e3 * measured["decode_step_s"]
    )
    for key in ("ttft_s", "method_ttft_s"):
        shown[f"{key}_parts"] = [
            "/".join(f"{row[f'{key}_p{p}']:.3g}" for p in (50, 90, 99)) for _, row in shown.iterrows()
        ]
    print(frame_table(shown, _SHOWN))
    if retaken := measured["retaken"].sum():
        left = measured["disturbed"].sum()
        print(f"other work on this machine: {retaken} passes were taken again, {left} repeats left out")
    if output is not None:
        measured.to_csv(output, index=False, float_format="%.5g")
        print(f"saved in {', '.join(map(str, [output, *speedups.speed(measured, output.with_suffix(''))]))}")
    if profile is not None:
        _profile(subjects[len(measured) - 1], profile)
        print(f"saved in {profile}")
    return 0


def _writable(key: str, name: str | None) -> Path | None:
    """The file that a setting names, once it is sure that it can be written: measuring takes long."""
    if name is None:
        return None
    path = Path(name)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise LazyBenchError(f"{key}={name} cannot be written: give a file in a folder that can")
    return path


def _profile(subjects: Subjects, path: Path) -> None:
    passes = {
        f"{name}, {of.decode.max_new_tokens} new tokens": partial(of.runs()[name], 0)
        for of in (subjects.untimed(1), subjects.untimed(MEMORY_TOKENS))
        for name in (WHOLE, METHOD)
    }
    write_profile(subjects.decode.model.device, passes, path)


# The table people see: each column's title, its name and its form. A ratio above 1 is better.
_SHOWN = (
    ("tokens", "tokens", "{}"),
    ("TTFT s p50/p90/p99", "ttft_s_parts", "{}"),
    ("method's", "method_ttft_s_parts", "{}"),
    ("TTFT speedup", "ttft_speedup", "{:.2f}"),
    ("over keep 1", "ttft_speedup_over_keep_1", "{:.2f}"),
    ("ideal", "ideal_speedup", "{:.2f}"),
    ("efficiency", "efficiency", "{:.2f}"),
    ("decode step ms", "decode_step_ms", "{:.3g}"),
    ("decode step speedup", "decode_step_speedup", "{:.2f}"),
    ("over keep 1", "decode_step_speedup_over_keep_1", "{:.2f}"),
    *((f"steps {first}-{last or ''}", steps_column(first, last), "{:.2f}") for first, last in STEPS),
    ("generation speedup", "generation_speedup", "{:.2f}"),
    ("matrix share", "method_matrix_share", "{:.0%}"),
    ("memory reduction", "memory_reduction", "{:.2f}"),
    ("prompt KV", "kv_share", "{:.0%}"),
)
_HOST = (
    ("sequences", "sequences", "{}"),
    ("engine", "engine", "{}"),
    ("decode step ms", "step_ms", "{:.3g}"),
    ("over unmodified", "ratio", "{:.2f}"),
)
