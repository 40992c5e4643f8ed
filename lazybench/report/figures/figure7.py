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
from lazybench.report.figures.footer import of_rows
from lazybench.report.figures.style import BLACK, COLUMN, GREY, PAGE, TEXT, below, canvas, line, wrapped

CAPTION = (
    "Figure 7. Prompt tokens used so far against the generation step, a line a stage: mean and 10th to 90th percentile "
    "over records (averaged over a row's runs), as far as a quarter of the records still generate. The strip below "
    "counts these; a record that has ended keeps its last value, so that every step is about all of them"
)
NEEDS = "method=lazyllm task=all trace=true"
_WIDEST = 3
_WHOLE = {"color": BLACK, "linestyle": ":", "linewidth": 1}
_LIVING = 0.25  # of the records, at the last step that is drawn


def draw(block: Block) -> Figure | None:
    """A panel a traced row, above a strip with the number of records that still generate."""
    traced = [(row, [run for run in row.runs if "computed" in run.traces]) for row in block.rows]
    traced = [(row, runs) for row, runs in traced if runs]
    if not traced:
        return None
    columns = min(_WIDEST, len(traced))
    lines = -(-len(traced) // columns)
    width = COLUMN if len(traced) == 1 else PAGE
    layers = sorted({layer for _, runs in traced for layer in runs[0].traces["layers"]})
    looks = {layer: line(place) for place, layer in enumerate(layers)}
    figure = canvas(width, 2 * lines + 0.2)
    panels = figure.subplots(
        2 * lines, columns, sharex=True, sharey="row", squeeze=False, height_ratios=(1, 0.28) * lines
    )
    records = [sum(run.traces["computed"]["records"] for run in runs) for _, runs in traced]
    for place, (row, runs) in enumerate(traced):
        below_it = 2 * (place // columns) + 1
        upper, strip = (panels[at][place % columns] for at in (below_it - 1, below_it))
        _panel(upper, strip, runs, looks)
        upper.set_title(wrapped(f"{row.label}, n={records[place]}", width / columns - 0.45, TEXT))
        if place % columns == 0:
            upper.set_ylabel("prompt tokens\nused so far (%)")
            strip.set_ylabel("records")
        if place + columns >= len(traced):
            strip.set_xlabel("generation step (0 is prefilling)")
            strip.xaxis.set_tick_params(labelbottom=True)
    for axes in panels[-2:, len(traced) - columns * (lines - 1) :].flat:
        axes.set_visible(False)
    entries: dict[str, Any] = {"layers before the first stage": Line2D([], [], **_WHOLE)}
    entries |= {f"after layer {layer}": Line2D([], [], **looks[layer]) for layer in layers}
    entries["10th to 90th percentile of records"] = Patch(color=GREY, alpha=0.3, linewidth=0)
    below(figure, of_rows(block, [row for row, _ in traced], records), entries)
    return figure


def _panel(upper: Axes, strip: Axes, runs: list[Run], looks: dict[int, dict[str, Any]]) -> None:
    computed = [run.traces["computed"] for run in runs]
    longest = max(len(of["mean"][0]) for of in computed)
    living = np.sum([np.pad(of, (0, longest - len(of))) for of in map(_living, runs)], axis=0)
    steps = int(np.flatnonzero(living >= _LIVING * living[0])[-1]) + 1
    at = np.arange(steps)
    weights = [of["records"] for of in computed]
    mean, low, high = (
        100 * np.average([_held(of[key], steps) for of in computed], axis=0, weights=weights)
        for key in ("mean", "low", "high")
    )
    upper.axhline(100, **_WHOLE)
    for place, layer in enumerate(runs[0].traces["layers"]):
        upper.fill_between(at, low[place], high[place], color=looks[layer]["color"], alpha=0.2, linewidth=0)
        upper.plot(at, mean[place], markevery=max(1, steps // 6), **looks[layer])
    upper.set_ylim(0, 104)
    strip.fill_between(at, living[:steps], color=GREY, alpha=0.4, linewidth=0, step="mid")
    strip.set(ylim=(0, 1.1 * living[0]), yticks=(0, living[0]))


def _living(run: Run) -> list[int]:
    """How many records still generate, by step; what a report kept before it counted them tells by the answers."""
    computed = run.traces["computed"]
    tokens = run.records["new_tokens"].dropna()
    return computed.get("living") or [int((tokens > step).sum()) for step in range(len(computed["mean"][0]))]


def _held(values: list[list[float]], steps: int) -> np.ndarray:
    """Values by stage for so many steps, the last one held."""
    return np.asarray([[*stage, *[stage[-1]] * steps][:steps] for stage in values])
