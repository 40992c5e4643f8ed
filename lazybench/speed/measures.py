"""What the times of one prompt length say: ratios of neighbours, each with its spread over the repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import pandas as pd

from lazybench.bench import Pass
from lazybench.speed.subjects import EAGER, FLASH, KEEP_1, METHOD, WHOLE

Times = Mapping[str | int, Pass]


def summary(rounds: Sequence[Times], counts: list[int] | None, new_tokens: int) -> dict[str, float]:
    """Medians over the rounds, and of each measure the smallest and largest as `_low` and `_high`.

    Args:
        rounds: the passes of each repeat by name.
        counts: tokens in each layer while the prompt is prefilled; None leaves out what needs them.
        new_tokens: tokens of a generation.

    Returns:
        `ttft_s`, `decode_step_s` and `generation_s` of the unmodified model; `method_ttft_s` and so on; the ratios
        `ttft_speedup`, `decode_step_ratio` (method over unmodified) and `generation_speedup`; `ideal_speedup` and
        `efficiency`, where the ideal time is the sum over layers of the unmodified model's time per layer at that
        layer's token count, which the engine may beat, since its last layer does less; `keep_1_ttft`,
        `keep_1_decode_step` and `keep_1_generation`, with nothing pruned over unmodified; TTFT over the unmodified
        model's for other attention implementations, where they were timed.
    """
    found = [_of_round(times, counts, new_tokens) for times in rounds]
    columns = {}
    for name in found[0]:
        values = [measures[name] for measures in found]
        columns |= {name: median(values), f"{name}_low": min(values), f"{name}_high": max(values)}
    return columns


def _of_round(times: Times, counts: list[int] | None, new_tokens: int) -> dict[str, float]:
    def step(name: str) -> float:
        return (times[name].generation_s - times[name].ttft_s) / (new_tokens - 1)

    whole, method = times[WHOLE], times[METHOD]
    found = {
        "ttft_s": whole.ttft_s,
        "method_ttft_s": method.ttft_s,
        "ttft_speedup": whole.ttft_s / method.ttft_s,
        "decode_step_s": step(WHOLE),
        "method_decode_step_s": step(METHOD),
        "decode_step_ratio": step(METHOD) / step(WHOLE),
        "generation_s": whole.generation_s,
        "method_generation_s": method.generation_s,
        "generation_speedup": whole.generation_s / method.generation_s,
    }
    if counts is not None:
        # A count that is not timed by itself is the whole prompt's.
        ideal = sum(times.get(count, whole).ttft_s for count in counts) / len(counts)
        nothing_pruned = times[KEEP_1]
        found |= {
            "ideal_speedup": whole.ttft_s / ideal,
            "efficiency": ideal / method.ttft_s,
            "keep_1_ttft": nothing_pruned.ttft_s / whole.ttft_s,
            "keep_1_decode_step": step(KEEP_1) / step(WHOLE),
            "keep_1_generation": nothing_pruned.generation_s / whole.generation_s,
        }
    for other in (EAGER, FLASH):
        if other in times:
            found[f"{other}_ttft"] = times[other].ttft_s / whole.ttft_s
    return found


def _spread(name: str, form: str) -> Callable[[pd.Series], str]:
    def cell(row: pd.Series) -> str:
        if name not in row or pd.isna(row[name]):
            return "-"
        middle, low, high = (form.format(row[name + end]) for end in ("", "_low", "_high"))
        return middle if low == high else f"{middle} ({low} to {high})"

    return cell


def _share(row: pd.Series) -> str:
    share = row.get("method_matrix_share")
    return "-" if share is None or pd.isna(share) else f"{share:.0%}"


SHOWN: tuple[tuple[str, Callable[[pd.Series], str]], ...] = (
    ("tokens", lambda row: f"{row['tokens']}"),
    ("TTFT s", _spread("ttft_s", "{:.3g}")),
    ("speedup", _spread("ttft_speedup", "{:.2f}")),
    ("ideal", _spread("ideal_speedup", "{:.2f}")),
    ("efficiency", _spread("efficiency", "{:.2f}")),
    ("keep 1 TTFT", _spread("keep_1_ttft", "{:.2f}")),
    ("decode step ms", lambda row: f"{1e3 * row['decode_step_s']:.3g}"),
    ("step ratio", _spread("decode_step_ratio", "{:.2f}")),
    ("keep 1 step", _spread("keep_1_decode_step", "{:.2f}")),
    ("generation speedup", _spread("generation_speedup", "{:.2f}")),
    ("matrix share", _share),
    ("memory ratio", lambda row: f"{row['method_memory_mb'] / row['memory_mb']:.2f}"),
)
"""The table people see: each column's title, and what it says of a row."""
