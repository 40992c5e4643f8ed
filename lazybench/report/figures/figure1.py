"""Figure 1: how much of the baseline's generation time passes before the first token."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from lazybench.analysis.averages import ran, undisturbed
from lazybench.analysis.blocks import Block
from lazybench.analysis.labels import task_title
from lazybench.report import paper
from lazybench.report.figures.footer import of_rows
from lazybench.report.figures.style import BLUE, COLUMN, ORANGE, SMALL, below, canvas, wrapped

CAPTION = (
    "Figure 1. Share of TTFT and of decoding in the baseline's generation time; TTFT over the mean decode step; n: "
    "records. The last bar is the paper's own, of Llama 2 7B on LongBench on an NVIDIA A100"
)
NEEDS = "method=baseline task=all"
_PAPER = "paper: Llama 2 7B, LongBench, A100"
_NAMES = 1.1  # inches
_COLUMNS = ((28, "TTFT\nshare"), (60, "TTFT /\nstep"), (80, "n"))  # points right of the bars where numbers end


@dataclass(frozen=True)
class _Bar:
    name: str
    share: float
    ratio: float
    records: int | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The numbers beside the bar."""
        digits = 0 if self.records is None or self.ratio >= 100 else 1
        return f"{self.share:.0f}%", f"{self.ratio:.{digits}f}×", f"{self.records or ''}"


def draw(block: Block) -> Figure | None:
    """One bar a task, one for all of them, and the paper's; ratios of means over records that were not disturbed."""
    rows = [row for row in block.rows if row.method == "baseline"]
    bars: list[_Bar] = []
    counts: list[int] = []  # records with times, of each row
    for row in rows:
        records = undisturbed(ran(pd.concat([run.records for run in row.runs]))).dropna(subset=["decode_step_s"])
        counts.append(len(records))
        under = f" [{row.conditions}]" if len(rows) > 1 else ""
        for task, members in block.tasks().items():
            of = records[records["dataset"].isin(members)]
            if not of.empty:
                bars.append(_bar(f"{task_title(task)}{under}", of))
        if records["dataset"].nunique() > 1:
            bars.append(_bar(f"All records{under}", records))
    if not bars:
        return None
    printed = paper.figure1()
    bars.append(_Bar(_PAPER, printed["ttft_share"], printed["ttft_over_decode_step"]))
    names = [wrapped(bar.name, _NAMES) for bar in bars]
    tall = sum(max(0.2, 0.04 + 0.12 * (1 + name.count("\n"))) for name in names)
    figure = canvas(COLUMN, 0.7 + tall)
    axes = figure.add_subplot()
    # The paper's stands apart.
    places = [*range(len(bars) - 1), len(bars) - 0.6]
    shares = [bar.share for bar in bars]
    axes.barh(places, shares, height=0.7, color=BLUE, label="TTFT (prefilling)")
    axes.barh(
        places,
        [100 - share for share in shares],
        height=0.7,
        left=shares,
        color=ORANGE,
        hatch="////",
        edgecolor="white",
        linewidth=0,
        label="decoding",
    )
    axes.axhline(len(bars) - 1.3, color="black", linewidth=0.6, linestyle=":")
    for at, (across, title) in enumerate(_COLUMNS):
        for place, text in [(-0.65, title), *((place, bar.texts[at]) for place, bar in zip(places, bars, strict=True))]:
            axes.annotate(
                text,
                (1, place),
                (across, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="bottom" if text is title else "center",
                fontsize=SMALL,
                linespacing=0.95,
            )
    axes.set(xlim=(0, 100), ylim=(places[-1] + 0.6, -0.6), xticks=(0, 50, 100), xlabel="generation time (%)")
    axes.set_yticks(places, names, linespacing=0.95)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    below(figure, of_rows(block, rows, counts))
    return figure


def _bar(name: str, records: pd.DataFrame) -> _Bar:
    """TTFT's share of the generation time (%), and TTFT over the mean decode step."""
    ttft, whole = records["ttft_s"].mean(), records["generation_s"].mean()
    return _Bar(name, 100 * ttft / whole, ttft / records["decode_step_s"].mean(), len(records))
