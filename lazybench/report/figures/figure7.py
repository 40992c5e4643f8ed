"""Figure 7: how many prompt tokens each stage has let through, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lazybench.analysis.blocks import Block
from lazybench.analysis.run_data import Run
from lazybench.report.figures.style import GREY, REFERENCE, finish, line, of_rows, panels, wrapped

CAPTION = (
    "Figure 7. Prompt tokens used so far against the generation step, 0 being prefilling, a line a stage: mean and "
    "10th to 90th percentile over records (averaged over a row's runs), as far as more than half of the records still "
    "generate; n: records at the first and the last step shown. One that has ended keeps its last value, so that every "
    "step is about all of them. Methods that revive nothing are left out where others do"
)
NEEDS = "method=lazyllm task=all trace=true"


def draw(block: Block) -> Figure | None:
    """A panel a traced row."""
    traced = [(row, [run for run in row.runs if "computed" in run.traces]) for row in block.rows]
    traced = [(row, runs) for row, runs in traced if runs]
    traced = [(row, runs) for row, runs in traced if any(map(_revives, runs))] or traced
    if not traced:
        return None
    layers = sorted({layer for _, runs in traced for layer in runs[0].traces["layers"]})
    looks = {layer: line(place) for place, layer in enumerate(layers)}
    titles = [wrapped(row.label, 24) for row, _ in traced]
    height = 1.3 + 0.13 * max(title.count("\n") for title in titles)
    shared = {"sharex": True, "sharey": True}
    figure, grid = panels(len(traced), height, "generation step", "prompt tokens used (%)", **shared)
    for axes, title, (_, runs) in zip(grid, titles, traced, strict=True):
        first, last = _panel(axes, runs, looks)
        axes.set_title(f"{title}\nn={first} to {last}")
    entries: dict[str, Any] = {"before any stage": Line2D([], [], **REFERENCE)}
    entries |= {f"after layer {layer}": Line2D([], [], **look) for layer, look in looks.items()}
    entries["10th–90th percentile"] = Patch(color=GREY, alpha=0.3, linewidth=0)
    records = [sum(run.traces["computed"]["records"] for run in runs) for _, runs in traced]
    finish(figure, of_rows(block, [row for row, _ in traced], records), entries)
    return figure


def _panel(axes: Axes, runs: list[Run], looks: dict[int, dict[str, Any]]) -> tuple[int, int]:
    """Draw the stages of a row's runs; how many records generate at the first and at the last step."""
    computed = [run.traces["computed"] for run in runs]
    longest = max(len(of["mean"][0]) for of in computed)
    living = np.sum([np.pad(of, (0, longest - len(of))) for of in map(_living, runs)], axis=0)
    steps = int(np.flatnonzero(living > living[0] / 2)[-1]) + 1
    weights = [of["records"] for of in computed]
    mean, low, high = (
        100 * np.average([_held(of[key], steps) for of in computed], axis=0, weights=weights)
        for key in ("mean", "low", "high")
    )
    axes.axhline(100, **REFERENCE)
    for place, layer in enumerate(runs[0].traces["layers"]):
        axes.fill_between(range(steps), low[place], high[place], color=looks[layer]["color"], alpha=0.2, linewidth=0)
        axes.plot(range(steps), mean[place], markevery=max(1, steps // 4), **looks[layer])
    axes.set_ylim(0, 104)
    return living[0], living[steps - 1]


def _revives(run: Run) -> bool:
    """Whether tokens that were pruned come back: a stage's share then grows."""
    return any(len(set(stage)) > 1 for stage in run.traces["computed"]["mean"])


def _living(run: Run) -> list[int]:
    """How many records still generate, by step; what a report kept before it counted them tells by the answers."""
    computed = run.traces["computed"]
    tokens = run.records["new_tokens"].dropna()
    return computed.get("living") or [int((tokens > step).sum()) for step in range(len(computed["mean"][0]))]


def _held(values: list[list[float]], steps: int) -> np.ndarray:
    """Values by stage for so many steps, the last one held."""
    return np.asarray([[*stage, *[stage[-1]] * steps][:steps] for stage in values])
