"""The look that all figures share: colours the colour-blind can tell apart, and a marker and dash for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import is_color_like
from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is too pale for lines on white.
BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#56B4E9",
    "#CC79A7",
    "#000000",
)
_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
_MARKERS = "osD^vPX"
_DASHES = ("-", "--", "-.", ":")
_BY_METHOD = {"lazyllm": 0, "random_drop": 1, "static_pruning": 2, "prompt_compression": 3}
_DPI = 200
# At the legend's size of type.
_LETTERS_PER_INCH, _LETTERS_OF_HANDLE = 15, 6
_SETTINGS = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "pdf.fonttype": 42,  # text stays text
    "figure.dpi": _DPI,
    "savefig.dpi": _DPI,
}


def line(place: int) -> dict[str, Any]:
    """Colour, marker and dash of the line at a place; none is told apart by colour alone."""
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _DASHES[(place // len(_COLOURS) + place) % len(_DASHES)],
    }


def method_line(method: str, place: int, colour: str | None = None) -> dict[str, Any]:
    """A method's line: always the same for the paper's methods, by place for others; in `colour` where that is one."""
    look = line(_BY_METHOD.get(method, len(_BY_METHOD) + place))
    return look | {"color": colour} if is_color_like(colour) else look


def canvas(width: float, height: float) -> Figure:
    """An empty figure, in inches, that leaves room for what stands outside its axes."""
    return Figure(figsize=(width, height), layout="constrained")


def legend_outside(figure: Figure) -> None:
    """One legend below the axes, each label once, in as many columns as the figure is wide."""
    found = {}
    for axes in figure.axes:
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(text, handle)
    longest = max(map(len, found))
    columns = max(1, int(figure.get_figwidth() * _LETTERS_PER_INCH / (longest + _LETTERS_OF_HANDLE)))
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write PNG and PDF; the same figure gives the same bytes.

    Returns:
        the two files.
    """
    paths = []
    for suffix, metadata in ((".png", {"Software": None}), (".pdf", {"CreationDate": None})):
        path = stem.with_name(stem.name + suffix)
        figure.savefig(path, metadata=metadata)
        paths.append(path)
    return paths


@contextmanager
def styled() -> Iterator[None]:
    """Draw with the shared settings, whatever the user's own are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield
