"""What the times of one prompt length say: ratios of neighbours, each with its spread over the repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import pandas as pd

from lazybench.run.timing import Pass
from lazybench.speed.subjects import EAGER, FLASH, KEEP_1, METHOD, WHOLE

Times = Mapping[str | int, Pass]


def summary(rounds: Sequence[Times], counts: list[int] | None) -> dict[str, float]:
    """Medians over the rounds, and of each measure the smallest and largest as `_low` and `_high`.

    Args:
        rounds: the passes of each repeat by name.
        counts: tokens in each layer while the prompt is prefilled; None leaves out what needs them.

    Returns:
        `ttft_s`, `decode_step_s` and `generation_s` of the unmodified model; `method_ttft_s` and so on;
        `ttft_speedup`, `decode_step_speedup` and `generation_speedup` over it, and each `..._over_keep_1`, over the
        method's engine with nothing pruned; `keep_1_ttft_speedup` and so on, of that engine over the unmodified model;
        `ideal_speedup` and `efficiency`, where the ideal time is the sum over layers of the unmodified model's time
        per layer at that layer's token count, which the engine may beat, since its last layer does less; the TTFT
        speedup of other attention implementations, where they were timed. A ratio above 1 is faster.
    """
    found = [_of_round(times, counts) for times in rounds]
    columns = {}
    for name in found[0]:
        values = [measures[name] for measures in found]
        columns |= {name: median(values), f"{name}_low": min(values), f"{name}_high": max(values)}
    return columns


def _of_round(times: Times, counts: list[int] | None) -> dict[str, float]:
    whole, method, keep_1 = times[WHOLE], times[METHOD], times.get(KEEP_1)
    found: dict[str, float] = {}
    for what in ("ttft", "decode_step", "generation"):
        unmodified_s, method_s = getattr(whole, f"{what}_s"), getattr(method, f"{what}_s")
        found |= {f"{what}_s": unmodified_s, f"method_{what}_s": method_s, f"{what}_speedup": unmodified_s / method_s}
        if keep_1 is not None:
            keep_1_s = getattr(keep_1, f"{what}_s")
            found |= {
                f"{what}_speedup_over_keep_1": keep_1_s / method_s,
                f"keep_1_{what}_speedup": unmodified_s / keep_1_s,
            }
    if counts is not None:
        # A count that is not timed by itself is the whole prompt's.
        ideal = sum(times.get(count, whole).ttft_s for count in counts) / len(counts)
        found |= {"ideal_speedup": whole.ttft_s / ideal, "efficiency": ideal / method.ttft_s}
    for other in (EAGER, FLASH):
        if other in times:
            found[f"{other}_ttft_speedup"] = whole.ttft_s / times[other].ttft_s
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
    ("TTFT speedup", _spread("ttft_speedup", "{:.2f}")),
    ("over keep 1", _spread("ttft_speedup_over_keep_1", "{:.2f}")),
    ("ideal", _spread("ideal_speedup", "{:.2f}")),
    ("efficiency", _spread("efficiency", "{:.2f}")),
    ("decode step ms", lambda row: f"{1e3 * row['decode_step_s']:.3g}"),
    ("decode step speedup", _spread("decode_step_speedup", "{:.2f}")),
    ("over keep 1", _spread("decode_step_speedup_over_keep_1", "{:.2f}")),
    ("generation speedup", _spread("generation_speedup", "{:.2f}")),
    ("matrix share", _share),
    ("memory reduction", lambda row: f"{row['memory_mb'] / row['method_memory_mb']:.2f}"),
)
"""The table people see: each column's title, and what it says of a row. A ratio above 1 is better."""
