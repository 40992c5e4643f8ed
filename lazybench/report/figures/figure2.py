"""Figure 2: where the newest token of the prompt looks."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from lazybench.analysis.blocks import Block
from lazybench.analysis.traces import BINS
from lazybench.report.figures.style import BLUE, VERMILLION, canvas, finish, of_rows

CAPTION = (
    "Figure 2. Attention of the newest token in prefilling, by layer and position, and how few tokens hold it: mean "
    "and spread over layers and records"
)
NEEDS = "method=baseline task=all trace=true"


def draw(block: Block) -> Figure | None:
    """A heat map of attention by layer, and the share of attention that the top tokens hold.

    Both are means over the records of every baseline run that was traced; each record counts alike.
    """
    rows = [row for row in block.rows if any("attention" in run.traces for run in row.runs)]
    traced = [run.traces["attention"] for row in rows for run in row.runs if "attention" in run.traces]
    if not traced:
        return None
    weights = [of["records"] for of in traced]
    heat, mean, low, high = (
        np.average([of[key] for of in traced], axis=0, weights=weights) for key in ("map", "mean", "low", "high")
    )
    figure = canvas(3.1)
    upper, lower = figure.subplots(2, 1)
    least = max(heat[heat > 0].min(initial=1.0), heat.max() * 1e-4)
    extent = (0, 100, -0.5, len(heat) - 0.5)
    look = {"aspect": "auto", "origin": "lower", "interpolation": "nearest", "cmap": "cividis", "extent": extent}
    image = upper.imshow(np.maximum(heat, least), norm=LogNorm(least, heat.max()), **look)
    upper.grid(visible=False)
    upper.set(xlabel="position in the prompt (%)", ylabel="layer")
    figure.colorbar(image, ax=upper, format="{x:g}", label=f"attention on\n{100 // BINS}% of the prompt")
    top = np.arange(101)
    lower.fill_between(top, 100 * low, 100 * high, color=BLUE, alpha=0.25, linewidth=0, label="10th–90th percentile")
    lower.plot(top, 100 * mean, color=BLUE, label="mean")
    lower.plot(top, top, color=VERMILLION, linestyle=":", label="all tokens alike")
    lower.set(xlabel="top tokens of the prompt (%)", ylabel="attention they hold (%)", xlim=(0, 100), ylim=(0, 101))
    finish(figure, of_rows(block, rows, [sum(weights)]))
    return figure
