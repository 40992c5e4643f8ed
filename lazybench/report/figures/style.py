"""The style of all figures: as wide as a paper's column, colours for the colour-blind, markers and dashes.

Sizes are in `paper.mplstyle`.
"""

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib.style
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMN = 3.3  # inches
LETTERS = 57  # in a line as wide as a column
# Okabe and Ito's palette without its yellow, which is too pale for lines on white. The numbers of colours, markers and
# dashes have no common factor, so no two of the first 231 lines share all three.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
BLUE, VERMILLION, _, ORANGE, *_, BLACK = _COLOURS
GREY, PALE = "#666666", "#aaaaaa"
REFERENCE = {"color": BLACK, "linestyle": ":", "linewidth": 1}
_MARKERS = "osD^vPX<p>h"
_DASHES = ("-", "--", "-.")  # references are dotted


def styled() -> AbstractContextManager[None]:
    """Draw with `paper.mplstyle` instead of the user's settings."""
    return matplotlib.style.context(Path(__file__).with_name("paper.mplstyle"), after_reset=True)


def canvas(height: float) -> Figure:
    """Return an empty figure as wide as a column; `finish` adds to its height (inches)."""
    return Figure(figsize=(COLUMN, height), layout="constrained")


def panels(titles: Sequence[str], height: float, xlabel: str, ylabel: str, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each title in two columns, each `height` inches high under one line of title."""
    count, columns = len(titles), min(2, len(titles))
    rows = -(-count // columns)
    texts = [wrapped(title, LETTERS // columns - 6) for title in titles]
    height += 0.13 * max(text.count("\n") for text in texts)
    figure = canvas(max(2.0, height * rows))
    grid = figure.subplots(rows, columns, squeeze=False, **shared).ravel()
    for axes in grid[count:]:
        axes.remove()
    for axes, text in zip(grid, texts, strict=False):
        axes.set_title(text)
    for axes in grid[count - columns : count]:
        axes.set_xlabel(wrapped(xlabel, LETTERS // columns - 6))
        axes.tick_params(labelbottom=True)
    for axes in grid[:count:columns]:
        axes.set_ylabel(wrapped(ylabel, 18))
    return figure, [*grid[:count]]


def finish(figure: Figure, entries: Mapping[str, Any] | None = None) -> Figure:
    """Add one legend below the panels: `entries`, or all labels of the panels."""
    if entries is None:
        entries = {}
        for axes in figure.axes:
            handles, texts = axes.get_legend_handles_labels()
            entries |= zip(texts, handles, strict=True)
    texts = [wrapped(text, LETTERS - 8) for text in entries]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    rows = -(-len(texts) // max(1, LETTERS // (8 + longest)))
    columns = -(-len(texts) // rows)
    lines = sum(1 + text.count("\n") for text in texts) / columns
    figure.set_figheight(figure.get_figheight() + 0.07 + 0.13 * lines)
    figure.legend(entries.values(), texts, loc="outside lower center", ncols=columns)
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write PNG and PDF without dates or versions in them."""
    png, pdf = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "pdf"))
    figure.savefig(png, metadata={"Software": None})
    figure.savefig(pdf, metadata={"CreationDate": None})
    return [png, pdf]


def wrapped(text: str, letters: int) -> str:
    """Wrap a text into lines of at most `letters`, also after the commas of schedules."""
    return textwrap.fill(re.sub(r",(?=[\w.]+%?:)", ", ", text), letters, break_on_hyphens=False)


def line_style(number: int) -> dict[str, Any]:
    """Return colour, marker and dash of a figure's n-th line."""
    cycles = {"color": _COLOURS, "marker": _MARKERS, "linestyle": _DASHES}
    return {name: values[number % len(values)] for name, values in cycles.items()}


def error_bars(axes: Axes, points: pd.DataFrame, x: str, y: str, **options: Any) -> None:
    """Draw points, over pale bars from `_low` to `_high` where a column has both."""
    for key, name in (("xerr", x), ("yerr", y)):
        if f"{name}_low" in points:
            low, value, high = (points[f"{name}{end}"].astype(float) for end in ("_low", "", "_high"))
            options[key] = value - low, high - value
    axes.errorbar(points[x], points[y], ecolor=(options["color"], 0.4), **options)


def span(numbers: Collection[int]) -> str:
    """Return the least and the greatest number, or one number if all are the same."""
    least, greatest = min(numbers), max(numbers)
    return f"{least:,}" if least == greatest else f"{least:,} to {greatest:,}"
