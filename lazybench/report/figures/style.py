"""The look that all figures share: a paper's column, colours the colour-blind can tell apart, markers and dashes.

Figures are as wide as a column of a paper, so that nothing is scaled there; sizes are in `paper.mplstyle`.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like
from matplotlib.figure import Figure

from lazybench.analysis.averages import ran
from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.labels import data_title, model_title

COLUMN = 3.3  # inches
# Okabe and Ito's palette without its yellow, which is too pale for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
BLUE, VERMILLION, _, ORANGE, *_, BLACK = _COLOURS
GREY, PALE = "#666666", "#aaaaaa"
REFERENCE = {"color": BLACK, "linestyle": ":", "linewidth": 1}
_MARKERS = "osD^vPX<p>h"  # their number and that of colours have no common factor: 77 pairs
_DASHES = ("-", "--", "-.", ":")
_PLACES = ("lazyllm", "random_drop", "static_pruning", "prompt_compression", "lazyllm+", "gemfilter", "fastkv")
LETTERS = 57  # that fit a column


def styled() -> AbstractContextManager[None]:
    """Draw with the shared settings, whatever the user's own are."""
    return matplotlib.style.context(Path(__file__).with_name("paper.mplstyle"), after_reset=True)


def canvas(height: float) -> Figure:
    """An empty figure as wide as a column, its panels so many inches high; `finish` adds to that."""
    return Figure(figsize=(COLUMN, height), layout="constrained")


def panels(count: int, height: float, xlabel: str, ylabel: str, **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, two beside each other, each so many inches high."""
    columns = min(2, count)
    rows = -(-count // columns)
    figure = canvas(height * rows)
    grid = figure.subplots(rows, columns, squeeze=False, **shared).ravel()
    for axes in grid[count:]:
        axes.remove()
    for axes in grid[count - columns : count]:
        axes.set_xlabel(xlabel)
        axes.tick_params(labelbottom=True)
    figure.supylabel(ylabel, fontsize="medium")
    return figure, [*grid[:count]]


def finish(figure: Figure, about: str, entries: Mapping[str, Any] | None = None) -> Figure:
    """The figure with what it rests on above its panels, and below one legend: `entries`, else each label once."""
    if entries is None:
        labels = [axes.get_legend_handles_labels() for axes in figure.axes]
        entries = {text: handle for handles, texts in labels for handle, text in zip(handles, texts, strict=True)}
    texts = [wrapped(text, LETTERS - 8) for text in entries]
    columns = max(1, LETTERS // (8 + max((len(line) for text in texts for line in text.split("\n")), default=0)))
    heading = wrapped(about, LETTERS)
    lines = sum(1 + text.count("\n") for text in texts) / columns + heading.count("\n")
    figure.set_figheight(figure.get_figheight() + 0.2 + 0.13 * lines)
    figure.suptitle(heading, x=0.01, ha="left", color=GREY)
    if entries:
        figure.legend(entries.values(), texts, loc="outside lower center", ncols=columns)
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write PNG and PDF, the same bytes for the same figure; returns both. The PDF, for a paper, has no heading."""
    png, pdf = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "pdf"))
    figure.savefig(png, metadata={"Software": None})
    figure.suptitle("")
    figure.savefig(pdf, metadata={"CreationDate": None})
    return [png, pdf]


def wrapped(text: str, letters: int) -> str:
    """The text in lines of at most so many letters; schedules break behind their commas."""
    return textwrap.fill(re.sub(r",(?=[\w.]+%?:)", ", ", text), letters, break_on_hyphens=False)


def line(place: int) -> dict[str, Any]:
    """Colour, marker and dash of the line at a place; none is told apart by colour alone."""
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _DASHES[(place // len(_COLOURS) * 2 + place) % len(_DASHES)],  # another in each round of colours
    }


def method_lines(methods: Mapping[str, tuple[str, str | None]]) -> dict[str, dict[str, Any]]:
    """The line of each method: always the same for the built-in ones; others take what is left, in their order.

    `methods` has, by what the line is called, the method's name and the colour that it wants, if that is one.
    """
    # Of two lines of one method, such as its calibrated schedules, the first is the method's own.
    own = {name: title for title, (name, _) in reversed(methods.items()) if name in _PLACES}
    free = (place for place in count() if place >= len(_PLACES) or _PLACES[place] not in own)
    looks = {}
    for title, (name, colour) in methods.items():
        look = line(_PLACES.index(name) if own.get(name) == title else next(free))
        looks[title] = look | ({"color": colour} if is_color_like(colour) else {})
    return looks


def around(frame: pd.DataFrame, name: str) -> np.ndarray:
    """How far a column's intervals, `_low` to `_high`, go below and above, as `errorbar` takes it, if there are any."""
    value, low, high = (frame[name + end].astype(float) for end in ("", "_low", "_high"))
    return np.array([value - low, high - value])


def about(model: str, ran_on: Sequence[Mapping[str, Any]], others: Iterable[str] = ()) -> str:
    """What a figure rests on, in one line, without what is not known: model, weights, precision, `others`, device.

    `ran_on` is what `model.environment.describe` gave for each run; `others` are data, records and prompt lengths.
    """
    weights, dtype, device = (
        " or ".join(sorted({str(of[key]) for of in ran_on if of.get(key)}))
        for key in ("weights_format", "dtype", "device")
    )
    if timed_on := {of["times"]["device"] for of in ran_on if "times" in of} - {device}:
        device += f" (times: {timed_on.pop()})"
    weights = re.sub("GGUF |, dequantised", "", weights)
    within = f"{weights} weights, in {dtype}" if weights not in ("", dtype) else dtype
    return "; ".join(filter(None, [model_title(model) + (f" ({within})" if within else ""), *others, device]))


def of_rows(block: Block, rows: Sequence[Row], records: Sequence[int] = ()) -> str:
    """What a figure of these rows rests on; `records` is how many it shows of each, all that did not fail if empty."""
    data = "generated records, not LongBench" if block.generated else data_title(block.called)
    alike = ["dataset", "_id", "prompt_tokens"]  # a generated record has one name at all lengths
    of = [pd.concat([ran(run.records) for run in row.runs]).drop_duplicates(alike) for row in rows]
    tokens = pd.concat(of).drop_duplicates(alike)["prompt_tokens"]
    said = [data, f"n={span(records or map(len, of))}", prompts(tokens)]
    return about(block.model, [run.environment for row in rows for run in row.runs], said)


def prompts(tokens: Iterable[float]) -> str:
    """The lengths of prompts; empty where none is known."""
    known = pd.Series([*tokens], dtype=float).dropna()
    return f"prompts {known.median():,.0f} tokens (median; max {known.max():,.0f})" if len(known) else ""


def span(numbers: Iterable[int]) -> str:
    """One number where all are the same, else the least and the most."""
    ordered = sorted(numbers)
    return " to ".join(dict.fromkeys(f"{number:,}" for number in (ordered[0], ordered[-1])))
