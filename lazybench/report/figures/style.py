"""The style of all figures: as wide as a paper's column or page, with colours for the colour-blind.

Sizes are in `paper.mplstyle`.
"""

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib.style
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lazybench.analysis.labels import NO_REVIVAL

COLUMN, PAGE = 3.3, 7.0  # widths of figures (inches)
LETTERS = 17  # in an inch
# The first seven styles; others follow them. They are the same in every report.
_METHODS = ("random_drop", "static_pruning", "prompt_compression", "lazyllm", "lazyllm+", "fastkv", "gemfilter")
# Okabe and Ito's palette without its yellow, which is too pale for lines on white. The numbers of colours and markers
# have no common factor, so no two of the first 77 lines share both.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKERS = "XDPos^v<p>h"
BLACK, ORANGE, _, BLUE, VERMILLION, *_ = _COLOURS
GREY, PALE = "#666666", "#aaaaaa"
METADATA = {"png": {"Software": None}, "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer"))}  # no versions
REFERENCE = {"color": BLACK, "linestyle": ":", "linewidth": 1}


def styled() -> AbstractContextManager[None]:
    """Draw with `paper.mplstyle` instead of the user's settings."""
    return matplotlib.style.context(Path(__file__).with_name("paper.mplstyle"), after_reset=True)


def canvas(height: float, width: float = COLUMN) -> Figure:
    """Return an empty figure; `finish` adds to its height (inches)."""
    return Figure(figsize=(width, height), layout="constrained")


def in_rows(titles: Sequence[str], most: int = 4) -> list[list[str]]:
    """Lay titles out in the fewest rows of at most `most`, as even as can be; a `.` is an empty place."""
    columns = -(-len(titles) // -(-len(titles) // most))
    padded = [*titles, *"." * (-len(titles) % columns)]
    return [padded[start : start + columns] for start in range(0, len(padded), columns)]


def panels(
    layout: Sequence[Sequence[str]], height: float, xlabel: str, ylabel: str, **shared: bool
) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure with a panel per title of a layout, whose rows are `height` inches high.

    Several panels are as wide as the page, one is as wide as a column.
    """
    figure = canvas(height * len(layout), COLUMN if len(layout[0]) == 1 else PAGE)
    grid = figure.subplot_mosaic([*map(list, layout)], **shared)
    for title, axes in grid.items():
        axes.set_title(wrapped(title, int(LETTERS * figure.get_figwidth() / len(layout[0]))))
        axes.tick_params(labelbottom=True)
    figure.supxlabel(xlabel)
    figure.supylabel(ylabel)
    return figure, grid


def finish(figure: Figure, entries: Mapping[str, Any] | None = None) -> Figure:
    """Add one legend above the panels: `entries`, or all labels of the panels."""
    if entries is None:
        both = [axes.get_legend_handles_labels() for axes in figure.axes]
        entries = {text: handle for pair in both for handle, text in zip(*pair, strict=True)}
    texts, rows, letters = [*entries], 1, LETTERS * figure.get_figwidth()
    while sum(max(map(len, texts[at : at + rows])) + 7 for at in range(0, len(texts), rows)) > letters:
        rows += 1
    figure.set_figheight(figure.get_figheight() + 0.07 + 0.13 * rows)
    figure.legend(entries.values(), texts, loc="outside upper center", ncols=-(-len(texts) // rows))
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write PNG and PDF, and return both files."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in METADATA]
    for file, metadata in zip(files, METADATA.values(), strict=True):
        figure.savefig(file, metadata=metadata)
    return files


def wrapped(text: str, letters: int) -> str:
    """Wrap a text into lines of at most `letters`, also after the commas of schedules."""
    return textwrap.fill(re.sub(r",(?=[\w.]+%?:)", ", ", text), letters, break_on_hyphens=False)


def line_style(number: int) -> dict[str, Any]:
    """Return colour and marker of the n-th line."""
    return {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}


def method_styles(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return styles of methods, in the order of legends; those without revival have open markers and dashes."""
    styles = {}
    for number, method in enumerate(dict.fromkeys([*_METHODS, *(name.removesuffix(NO_REVIVAL) for name in methods)])):
        styles[method] = line_style(number)
        styles[method + NO_REVIVAL] = styles[method] | {"markerfacecolor": "white", "linestyle": "--"}
    return styles


def error_bars(axes: Axes, points: pd.DataFrame, x: str, y: str, **options: Any) -> None:
    """Draw points over pale bars from `_low` to `_high` of `y`."""
    low, value, high = (points[f"{y}{end}"].astype(float) for end in ("_low", "", "_high"))
    axes.errorbar(points[x], value, (value - low, high - value), ecolor=(options["color"], 0.4), **options)


def span(numbers: Collection[int]) -> str:
    """Return the least and the greatest number, or one number if all are the same."""
    least, greatest = min(numbers), max(numbers)
    return f"{least:,}" if least == greatest else f"{least:,} to {greatest:,}"
