"""Figure 5: what each method pays in score for its TTFT speedup."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from lazybench.analysis.averages import SCORE, TTFT
from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.cells import cell, part_of
from lazybench.analysis.intervals import Estimate
from lazybench.analysis.labels import colour, is_calibrated, method_title, strength, task_title
from lazybench.report.caveats import floors
from lazybench.report.figures.footer import of_rows, span
from lazybench.report.figures.style import BLACK, COLUMN, PAGE, TEXT, below, canvas, method_lines, wrapped

CAPTION = (
    "Figure 5. TTFT speedup against score, a line a method, a point a strength: markers grow in the order in which the "
    "legend names the strengths, from the least speedup to the most. Bars, and the baseline's band: 95% intervals over "
    "records, where they are enough for one; n: records behind a point. All panels have the same scales (LazyLLM: "
    "schedules of two stages or more, if there are any; calibrated: found on other records, unless the legend says on "
    "these)"
)
NEEDS = "-m +experiment=figure5"
_LEAST_SPAN = 2  # points of score
_LOGARITHMIC = 5  # from a fastest to a slowest method that are so many times apart
_SIZES = (2.5, 5.5)  # points of the smallest and the largest marker


@dataclass(frozen=True)
class _Point:
    row: Row
    speedup: Estimate
    score: Estimate
    records: int


def draw(block: Block) -> Figure | None:
    """A panel a task; None unless a method has points at two strengths or more on a task."""
    panels: dict[str, dict[str, list[_Point]]] = {}
    levels: dict[str, dict[str, Estimate]] = defaultdict(dict)
    tasks = block.tasks()
    for task, members in tasks.items():
        points: dict[str, list[_Point]] = defaultdict(list)
        for row in block.compared:
            parts = {task: part_of(row, members)}
            of_score, speedup = cell(parts, SCORE), cell(parts, TTFT[0]).estimate
            if of_score.estimate is not None and row.method == "baseline":
                levels[task][_name(row)] = of_score.estimate
            elif of_score.estimate is not None and speedup is not None:
                points[_name(row)].append(_Point(row, speedup, of_score.estimate, of_score.records))
        if points:
            panels[task] = points
    if not any(len(line) > 1 for points in panels.values() for line in points.values()):
        return None
    strengths = _strengths(panels)
    names = {name: rows[0] for name, rows in strengths.items()}
    looks = method_lines({name: (row.runs[0].method, colour(row.runs[0])) for name, row in names.items()})
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    lines_of = {_entry(name, rows): _handle(looks[name], len(rows)) for name, rows in strengths.items()}
    baselines: dict[str, Any] = {}
    width = COLUMN if len(panels) == 1 else PAGE
    figure = canvas(width, 1.6 * lines + 0.3)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    at_floor = floors(block)
    for axes, (task, points) in zip(grid.flat, panels.items(), strict=False):
        for place, (name, level) in enumerate(levels[task].items()):
            baselines[name] = axes.axhline(
                level.value, color=BLACK, linestyle=(":", "--", "-.")[place % 3], linewidth=1
            )
            if level.low is not None:
                axes.axhspan(level.low, level.high, color=BLACK, alpha=0.07, linewidth=0)
        axes.axvline(1, color="#888888", linewidth=0.6)
        for name in strengths:
            if name in points:
                _line(axes, points[name], strengths[name], looks[name])
        title = f"{task_title(task)}, n={span(point.records for point in chain.from_iterable(points.values()))}"
        if set(tasks[task]) <= at_floor:
            title += " (floor: shows nothing)"
        axes.set_title(wrapped(title, width / columns - 0.4, TEXT))
    _scales(grid.flat[0], [point for points in panels.values() for line in points.values() for point in line])
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.set_xlabel("TTFT speedup (×)")
    figure.supylabel("score (0 to 100)", fontsize=TEXT)
    below(figure, of_rows(block, block.compared), baselines | lines_of)
    return figure


def _strengths(panels: Mapping[str, Mapping[str, Sequence[_Point]]]) -> dict[str, list[Row]]:
    """The rows of each line, from the least mean speedup to the most."""
    speedups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows: dict[str, Row] = {}
    for points in panels.values():
        for name, line in points.items():
            for point in line:
                speedups[name][point.row.label].append(point.speedup.value)
                rows[point.row.label] = point.row
    order = {row.label: place for place, row in enumerate(rows.values())}
    return {
        name: [rows[label] for label in sorted(of, key=lambda label: (fmean(of[label]), order[label]))]
        for name, of in speedups.items()
    }


def _size(place: int, count: int) -> float:
    """Of the marker of one of several strengths."""
    least, most = _SIZES
    return least + (most - least) * (place + 1) / count


def _line(axes: Axes, points: Sequence[_Point], rows: Sequence[Row], look: Mapping[str, Any]) -> None:
    """The points of a method in the order of its strengths, with their intervals."""
    of = {point.row.label: point for point in points}
    met = [(place, of[row.label]) for place, row in enumerate(rows) if row.label in of]
    bare = {key: value for key, value in look.items() if key != "marker"}
    axes.plot([point.speedup.value for _, point in met], [point.score.value for _, point in met], **bare)
    for place, point in met:
        axes.errorbar(
            point.speedup.value,
            point.score.value,
            xerr=_around(point.speedup),
            yerr=_around(point.score),
            color=look["color"],
            marker=look["marker"],
            markersize=_size(place, len(rows)),
            elinewidth=0.6,
        )


def _around(of: Estimate) -> list[list[float]] | None:
    """How far the interval goes below and above, as `errorbar` takes it."""
    return None if of.low is None else [[of.value - of.low], [of.high - of.value]]


def _scales(axes: Axes, points: Sequence[_Point]) -> None:
    """One scale for all panels: logarithmic where speedups are far apart."""
    speedups = [point.speedup.value for point in points]
    if max(*speedups, 1) > _LOGARITHMIC * min(*speedups, 1):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    if high - low < _LEAST_SPAN:  # else noise, or nothing at all, would fill the panels
        axes.set_ylim((low + high - _LEAST_SPAN) / 2, (low + high + _LEAST_SPAN) / 2)


def _entry(name: str, rows: Sequence[Row]) -> str:
    """A line's text in the legend: the method, what all its strengths share, and what makes them differ."""
    settings = [strength(row.method, row.runs[0].settings["method"]) for row in rows]
    shared = {key: text for key, text in settings[0].items() if all(of.get(key) == text for of in settings)}
    own = [" ".join(f"{_key(key)}{text}" for key, text in of.items() if key not in shared) for of in settings]
    keys = {key for of in settings for key in of.keys() - shared.keys()}
    if len(keys) == 1 and all(of.keys() >= keys for of in settings):
        (key,) = keys
        own = [_key(key) + settings[0][key], *(of[key] for of in settings[1:])]
    common = "".join(f", {_key(key)}{text}" for key, text in shared.items())
    between = "; " if any("," in text for text in own) else ", "
    listed = between.join(text for text in own if text)
    return f"{name}{common}" + (f": {listed}" if listed else "")


def _key(key: str) -> str:
    """A setting's name before its value; schedules go without."""
    return "" if key == "schedule" else f"{key.replace('_', ' ')} "


def _handle(look: Mapping[str, Any], count: int) -> tuple[Line2D, ...]:
    """What the legend shows of a line: its markers, as they grow."""
    return tuple(Line2D([], [], **look, markersize=_size(place, count)) for place in range(count))


def _name(row: Row) -> str:
    """What a row's line is called."""
    return f"{_title(row)} [{row.conditions}]" if row.conditions else _title(row)


def _title(row: Row) -> str:
    """A row's method; its calibrated schedules have a line of their own."""
    title = method_title(row.runs[0])
    if not is_calibrated(row.runs[0]):
        return title
    return f"{title} calibrated" + (" on these records" if any(run.calibrated_on for run in row.runs) else "")
