"""Figure 1: how much of the baseline's generation time passes before the first token."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from lazybench.analysis.averages import ran, undisturbed
from lazybench.analysis.blocks import Block
from lazybench.analysis.labels import task_title
from lazybench.report import paper
from lazybench.report.figures.style import BLUE, ORANGE, canvas, finish, of_rows, wrapped

CAPTION = (
    "Figure 1. Share of TTFT and of decoding in the baseline's generation time; on the right TTFT's share, and TTFT "
    "over the mean decode step; n: records. The last bar is the paper's own, of Llama 2 7B on LongBench on an NVIDIA "
    "A100"
)
NEEDS = "method=baseline task=all"


def draw(block: Block) -> Figure | None:
    """One bar a task, one for all of them, and the paper's; ratios of means over records that were not disturbed."""
    rows = [row for row in block.rows if row.method == "baseline"]
    bars: dict[str, tuple[float, float]] = {}  # TTFT's share (%), and TTFT over a decode step
    counts: list[int] = []  # records with times, of each row
    for row in rows:
        records = undisturbed(ran(pd.concat([run.records for run in row.runs]))).dropna(subset=["decode_step_s"])
        counts.append(len(records))
        under = f" [{row.conditions}]" if len(rows) > 1 else ""
        parts = {task_title(task): records[records["dataset"].isin(names)] for task, names in block.tasks().items()}
        if records["dataset"].nunique() > 1:
            parts["All records"] = records
        for name, of in parts.items():
            if len(of):
                ttft, whole, step = (of[key].mean() for key in ("ttft_s", "generation_s", "decode_step_s"))
                bars[f"{name}{under}, n={len(of)}"] = 100 * ttft / whole, ttft / step
    if not bars:
        return None
    printed = paper.figure1()
    bars["paper: Llama 2 7B, A100"] = printed["ttft_share"], printed["ttft_over_decode_step"]
    names = [wrapped(name, 26) for name in bars]
    shares = [share for share, _ in bars.values()]
    places = [*range(len(bars) - 1), len(bars) - 0.7]  # the paper's stands apart
    figure = canvas(0.6 + len(bars) * (0.19 + 0.12 * max(name.count("\n") for name in names)))
    axes = figure.add_subplot()
    axes.barh(places, shares, height=0.7, color=BLUE, label="TTFT (prefilling)")
    rest = [100 - share for share in shares]
    look = {"color": ORANGE, "hatch": "////", "edgecolor": "white", "linewidth": 0}
    axes.barh(places, rest, height=0.7, left=shares, label="decoding", **look)
    axes.set(xlim=(0, 100), ylim=(places[-1] + 0.5, -0.5), xlabel="generation time (%)")
    axes.set_yticks(places, names)
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(places, [f"{share:.0f}%, {ratio:.0f}×" for share, ratio in bars.values()])
    beside.set_ylabel("TTFT share, TTFT / step")
    beside.spines["right"].set_visible(False)
    for of in (axes, beside):
        of.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    finish(figure, of_rows(block, rows, counts))
    return figure
