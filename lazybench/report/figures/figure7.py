"""Figure 7: how many prompt tokens each stage has let through, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lazybench.report.blocks import Block, Row
from lazybench.report.figures.style import BLACK, canvas, legend_outside, line

CAPTION = (
    "Figure 7. Prompt tokens used so far against the generation step, a line a stage: mean and 10th to 90th percentile "
    "over records (averaged over a row's runs); a record that has ended keeps its last value"
)
NEEDS = "method=lazyllm task=all trace=true"
_WIDEST = 3


def draw(block: Block) -> Figure | None:
    """A panel a traced row."""
    traced = [(row, [run.traces for run in row.runs if "computed" in run.traces]) for row in block.rows]
    traced = [(row, of) for row, of in traced if of]
    if not traced:
        return None
    columns = min(_WIDEST, len(traced))
    lines = -(-len(traced) // columns)
    figure = canvas(max(5.0, 2.9 * columns + 0.4), 2.5 * lines + 0.8)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    layers = sorted({layer for _, of in traced for layer in of[0]["layers"]})
    looks = {layer: line(place) for place, layer in enumerate(layers)}
    for axes, (row, traces) in zip(panels, traced, strict=False):
        _panel(axes, row, traces, looks)
    for axes in panels[len(traced) - columns : len(traced)]:
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.set_xlabel("generation step (0 is prefilling)")
    for axes in panels[len(traced) :]:
        axes.set_visible(False)
    figure.supylabel("prompt tokens used so far (%)", fontsize=9)
    figure.suptitle(block.title, fontsize=9)
    legend_outside(figure)
    return figure


def _panel(axes: Axes, row: Row, traces: list[dict[str, Any]], looks: dict[int, dict[str, Any]]) -> None:
    steps = max(len(of["computed"]["mean"][0]) for of in traces)
    weights = [of["computed"]["records"] for of in traces]
    held = {
        key: np.average([_held(of["computed"][key], steps) for of in traces], axis=0, weights=weights)
        for key in ("mean", "low", "high")
    }
    axes.axhline(100, color=BLACK, linestyle=":", linewidth=1.2, label="layers before the first stage")
    for place, layer in enumerate(traces[0]["layers"]):
        look = looks[layer]
        at = np.arange(steps)
        axes.fill_between(
            at, 100 * held["low"][place], 100 * held["high"][place], color=look["color"], alpha=0.2, linewidth=0
        )
        axes.plot(at, 100 * held["mean"][place], label=f"after layer {layer}", markevery=max(1, steps // 8), **look)
    axes.set(ylim=(0, 104), title=f"{row.label}\n{sum(weights)} records")


def _held(values: list[list[float]], steps: int) -> np.ndarray:
    return np.asarray([stage + [stage[-1]] * (steps - len(stage)) for stage in values])
