"""The look that all figures share: a paper's sizes, colours the colour-blind can tell apart, markers and dashes.

Figures are as wide as a paper's column or page: nothing is scaled there, and their type is as large as it says here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import is_color_like
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.legend_handler import HandlerTuple
from matplotlib.textpath import text_to_path

COLUMN, PAGE = 3.3, 6.9  # inches
TEXT, SMALL = 7.5, 7  # points; titles and labels of axes, and all else

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
GREY = "#666666"
_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
_MARKERS = "osD^vPX<p>h"  # their number and that of colours have no common factor: 77 pairs
_DASHES = ("-", "--", "-.", ":")
_PLACES = ("lazyllm", "random_drop", "static_pruning", "prompt_compression", "lazyllm+", "gemfilter", "fastkv")
_DPI = 300
_MARGIN = 0.04  # inches, around the figure
# Of the legend, in its letters' size.
_HANDLE, _PAD, _BETWEEN = 3.0, 0.6, 1.4
_SETTINGS = {
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": _HANDLE,
    "legend.handletextpad": _PAD,
    "legend.columnspacing": _BETWEEN,
    "legend.borderaxespad": 0.2,
    "legend.borderpad": 0.2,
    "legend.labelspacing": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.labelpad": 2,
    "axes.titlepad": 3,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "figure.constrained_layout.w_pad": _MARGIN,
    "figure.constrained_layout.h_pad": _MARGIN,
    "text.parse_math": False,  # a method's name may have a $
    "pdf.fonttype": 42,  # text stays text
    "figure.dpi": _DPI,
    "savefig.dpi": _DPI,
}


def line(place: int) -> dict[str, Any]:
    """Colour, marker and dash of the line at a place; none is told apart by colour alone."""
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _DASHES[(place // len(_COLOURS) * 2 + place) % len(_DASHES)],  # another in each round of colours
    }


def method_lines(methods: Mapping[str, tuple[str, str | None]]) -> dict[str, dict[str, Any]]:
    """The line of each method: always the same for the built-in ones; others take what is left, in their order.

    Args:
        methods: by what the line is called: the method's name, and the colour that it wants, if that is one.
    """
    names = [name for name, _ in methods.values()]
    # Of two lines of one method, such as its calibrated schedules, the first is the method's own.
    own = {title: name in _PLACES and names.index(name) == at for at, (title, (name, _)) in enumerate(methods.items())}
    taken = {_PLACES.index(name) for title, (name, _) in methods.items() if own[title]}
    free = (place for place in count() if place not in taken)
    looks = {}
    for title, (name, colour) in methods.items():
        look = line(_PLACES.index(name) if own[title] else next(free))
        looks[title] = look | {"color": colour} if is_color_like(colour) else look
    return looks


def canvas(width: float, height: float) -> Figure:
    """An empty figure, in inches; `below` adds to its height."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # which can measure what is drawn
    return figure


def below(figure: Figure, about: str, entries: Mapping[str, Any] | None = None) -> None:
    """Write what the figure rests on below all else, and one legend above that; the figure gets higher by both.

    Args:
        figure: with all that its axes hold.
        about: what it rests on, as `footer` gives it.
        entries: what the legend shows, by its text; None takes each label of the axes once.
    """
    if entries is None:
        entries = {}
        for axes in figure.axes:
            for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
                entries.setdefault(text, handle)
    width, height = figure.get_size_inches()
    text = wrapped(about, width - 2 * _MARGIN)
    footer = figure.text(0, 0, text, fontsize=SMALL, color=GREY, linespacing=1.1, va="bottom")
    legend = _legend(figure, entries, width - 2 * _MARGIN)
    renderer = figure.canvas.get_renderer()
    of_footer, of_legend = (of.get_window_extent(renderer).height / figure.dpi for of in (footer, legend))
    added = of_footer + of_legend + 1.5 * _MARGIN
    whole = height + added
    figure.set_size_inches(width, whole)
    footer.set_position((_MARGIN / width, _MARGIN / whole))
    legend.set_bbox_to_anchor((0.5, (of_footer + _MARGIN) / whole))
    figure.get_layout_engine().set(rect=(0, added / whole, 1, height / whole))


def _legend(figure: Figure, entries: Mapping[str, Any], room: float) -> Legend:
    """In as many columns as fit into `room` inches, none wider than a paper's column."""
    letter = SMALL / 72
    handle = (_HANDLE + _PAD) * letter
    texts = [wrapped(text, min(room, COLUMN) - handle - letter) for text in entries]
    widths = [handle + max(map(text_width, text.split("\n"))) for text in texts]

    def width(columns: int) -> float:
        # Matplotlib fills column after column.
        each = [max(of) for of in np.array_split(widths, columns)]
        return sum(each) + (_BETWEEN * (columns - 1) + 0.8) * letter

    columns = next((columns for columns in range(len(texts), 1, -1) if width(columns) <= room), 1)
    legend = figure.legend(
        [*entries.values()],
        texts,
        loc="lower center",
        ncols=columns,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},  # what a tuple holds, side by side
    )
    legend.set_in_layout(False)
    return legend


@cache
def text_width(text: str, size: float = SMALL) -> float:
    """How wide a line of text is, in inches."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return 1.02 * width / 72  # letters on whole pixels may be a little wider


def wrapped(text: str, width: float, size: float = SMALL) -> str:
    """The text in lines of about the same length, no wider than so many inches; a long word breaks, at commas first."""
    best = _filled(text, width, size)
    for narrower in np.arange(0.95, 0.5, -0.05) * width:
        tried = _filled(text, narrower, size)
        if len(tried) > len(best):
            break
        best = tried
    return "\n".join(best)


def _filled(text: str, width: float, size: float) -> list[str]:
    """Lines that each hold as much as goes in."""
    lines = [""]
    for word in re.findall(r"\S+\s*|\s+", text):
        for piece in _pieces(word, width, size):
            if lines[-1] and not _fits(lines[-1] + piece, width, size):
                lines.append("")
            lines[-1] += piece
    return [line.rstrip() for line in lines]


def _pieces(word: str, width: float, size: float) -> list[str]:
    """The word, or what a line can hold of it where it is too long."""
    if _fits(word, width, size):
        return [word]
    parts = re.findall("[^,]*,|[^,]+", word)
    return [piece for part in parts for piece in ([part] if _fits(part, width, size) else re.findall(".{1,8}", part))]


def _fits(line: str, width: float, size: float) -> bool:
    return text_width(line.rstrip(), size) <= width


def ticks_at(axes: Axes, values: Iterable[float], form: str = "{:g}") -> None:
    """Ticks of the x axis where the data are, each named by `form` as far as there is room; its limits are set."""
    low, high = axes.get_xlim()
    inch = (high - low) / (0.75 * axes.figure.get_figwidth())
    named: list[float] = []
    others: list[float] = []
    for value in sorted(set(values)):
        apart = 1.3 * text_width(form.format(value)) * inch
        (named if not named or value - named[-1] > apart else others).append(value)
    axes.set_xticks(named, [form.format(value) for value in named])
    axes.set_xticks(others, minor=True)


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
