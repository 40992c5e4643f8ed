"""Figure 2: where the newest token of the prompt looks."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lazybench.analysis.blocks import Block
from lazybench.analysis.traces import BINS
from lazybench.report.figures.footer import of_rows
from lazybench.report.figures.style import BLUE, PAGE, VERMILLION, below, canvas

CAPTION = "Figure 2. Attention of the newest token in prefilling, by layer and position, and how few tokens hold it"
NEEDS = "method=baseline task=all trace=true"


def draw(block: Block) -> Figure | None:
    """A heat map of attention by layer, and the share of attention that the top tokens hold.

    Both are means over the records of every baseline run that was traced; each record counts alike.
    """
    traced = [run.traces["attention"] for run in block.runs if "attention" in run.traces]
    if not traced:
        return None
    layers = len(traced[0]["map"])
    weights = [of["records"] for of in traced]
    figure = canvas(PAGE, 2.2)
    figure.get_layout_engine().set(wspace=0.06)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    heat = np.average([of["map"] for of in traced], axis=0, weights=weights)
    low = max(float(heat[heat > 0].min(initial=1.0)), float(heat.max()) * 1e-4)
    image = left.imshow(
        np.maximum(heat, low),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="cividis",
        norm=LogNorm(low, float(heat.max())),
        extent=(0, 100, -0.5, layers - 0.5),
    )
    left.grid(visible=False)
    left.set(xlabel="position in the prompt (%)", ylabel="layer", title="attention by layer")
    bar = figure.colorbar(image, ax=left, format=FuncFormatter(lambda value, _: f"{value:g}"))
    bar.set_label(f"attention on {100 // BINS}% of the prompt")
    top = np.arange(101)
    mean, floor, ceiling = (100 * np.average([of[key] for of in traced], axis=0, weights=weights) for key in _CURVES)
    right.fill_between(top, floor, ceiling, color=BLUE, alpha=0.25, linewidth=0, label="10th to 90th percentile")
    right.plot(top, mean, color=BLUE, label="mean of layers and records")
    right.plot(top, top, color=VERMILLION, linestyle=":", label="if all tokens had the same")
    right.set(
        xlabel="top tokens of the prompt (%)",
        ylabel="share of attention (%)",
        xlim=(0, 100),
        ylim=(0, 101),
        title="attention held by the top tokens",
    )
    rows = [row for row in block.rows if any("attention" in run.traces for run in row.runs)]
    below(figure, of_rows(block, rows, [sum(weights)]))
    return figure


_CURVES = ("mean", "low", "high")
