"""Figure 1: how much of the baseline's generation time passes before the first token."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from lazybench.report import paper
from lazybench.report.blocks import Block
from lazybench.report.figures.style import BLUE, ORANGE, canvas, legend_outside
from lazybench.report.labels import task_title

CAPTION = (
    "Figure 1. Share of TTFT and of decoding in the baseline's generation time, and TTFT over the mean decode step"
)
NEEDS = "method=baseline task=all"


def draw(block: Block) -> Figure | None:
    """One bar a task, and one for all of them; ratios of means over records that were not disturbed."""
    rows = [row for row in block.rows if row.method == "baseline"]
    bars: list[tuple[str, float, float]] = []
    for row in rows:
        records = pd.concat([run.records for run in row.runs])
        records = records[(records["error"] == "") & (records["disturbed"] != 1)].dropna(subset=["decode_step_s"])
        suffix = f"\n{row.label}" if len(rows) > 1 else ""
        for task, members in block.tasks().items():
            of = records[records["dataset"].isin(members)]
            if not of.empty:
                bars.append((f"{task_title(task)}{suffix}", *_shares(of)))
        if records["dataset"].nunique() > 1:
            bars.append((f"all records{suffix}", *_shares(records)))
    if not bars:
        return None
    printed = paper.figure1(block)
    if printed is not None:
        bars.append(("paper, LongBench", printed["ttft_share"], printed["ttft_over_decode_step"]))
    figure = canvas(7, 1.3 + 0.38 * len(bars))
    axes = figure.add_subplot()
    names = [name for name, _, _ in bars]
    shares = [share for _, share, _ in bars]
    axes.barh(names, shares, color=BLUE, label="TTFT (prefilling)")
    axes.barh(
        names,
        [100 - share for share in shares],
        left=shares,
        color=ORANGE,
        hatch="///",
        edgecolor="white",
        linewidth=0,
        label="decoding",
    )
    for place, (_, share, ratio) in enumerate(bars):
        axes.text(101.5, place, f"TTFT {share:.0f}%, {ratio:.1f} × a decode step", va="center", fontsize=8)
    axes.set(xlim=(0, 100), xlabel="share of the generation time (%)", title=f"baseline, {block.title}")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    legend_outside(figure)
    return figure


def _shares(records: pd.DataFrame) -> tuple[float, float]:
    """TTFT's share of the generation time (%), and TTFT over the mean decode step."""
    ttft, whole = records["ttft_s"].mean(), records["generation_s"].mean()
    return 100 * ttft / whole, ttft / records["decode_step_s"].mean()
