"""Figure 5: what each method pays in score for its TTFT speedup."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from lazybench.analysis.averages import SCORE, TTFT
from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.cells import cell, part_of
from lazybench.analysis.intervals import Estimate
from lazybench.analysis.labels import colour, is_calibrated, method_title, task_title
from lazybench.report.figures.style import REFERENCE, around, finish, method_lines, of_rows, panels, span, wrapped

CAPTION = (
    "Figure 5. TTFT speedup against score, a line a method, a point a strength, which Table 1 names. Bars: 95% "
    "intervals over records, where they are enough for one; n: records behind a point. Each panel has its own scores "
    "(LazyLLM: schedules of two stages or more, if there are any; calibrated: found on other records, unless the "
    "legend says on these)"
)
NEEDS = "-m +experiment=figure5"


@dataclass(frozen=True)
class _Point:
    speedup: Estimate
    score: Estimate
    records: int


def draw(block: Block) -> Figure | None:
    """A panel a task; None unless a method has points at two strengths or more on a task."""
    named = {_name(row): row for row in block.compared if row.method != "baseline"}
    looks = method_lines({name: (row.method, colour(row.runs[0])) for name, row in named.items()})
    found: dict[str, dict[str, list[_Point]]] = {}
    levels: dict[str, dict[str, Estimate]] = defaultdict(dict)
    for task, members in block.tasks().items():
        lines: dict[str, list[_Point]] = defaultdict(list)
        for row in block.compared:
            parts = {task: part_of(row, members)}
            score, speedup = cell(parts, SCORE), cell(parts, TTFT[0]).estimate
            if score.estimate is not None and row.method == "baseline":
                levels[task][_name(row)] = score.estimate
            elif score.estimate is not None and speedup is not None:
                lines[_name(row)].append(_Point(speedup, score.estimate, score.records))
        if lines:
            found[task] = lines
    if not any(len(points) > 1 for lines in found.values() for points in lines.values()):
        return None
    figure, grid = panels(len(found), 1.2, "TTFT speedup (×)", "score (0 to 100)", sharex=True)
    for axes, (task, lines) in zip(grid, found.items(), strict=True):
        for name, level in levels[task].items():
            axes.axhline(level.value, label=name, **REFERENCE)
        axes.axvline(1, color="#aaaaaa", linewidth=0.6)
        for name, points in lines.items():
            _line(axes, sorted(points, key=lambda of: of.speedup.value), label=name, **looks[name])
        records = span(point.records for points in lines.values() for point in points)
        axes.set_title(wrapped(f"{task_title(task)}, n={records}", 24))
    grid[0].set_xscale("log", base=2)
    grid[0].xaxis.set_major_locator(LogLocator(2, subs=(1, 1.5)))
    grid[0].xaxis.set_minor_locator(NullLocator())
    grid[0].xaxis.set_major_formatter("{x:g}")
    finish(figure, of_rows(block, block.compared))
    return figure


def _line(axes: Axes, points: list[_Point], **look: object) -> None:
    across, up = ([getattr(point, key) for point in points] for key in ("speedup", "score"))
    bars = [
        around([of.value for of in ends], [of.low for of in ends], [of.high for of in ends]) for ends in (across, up)
    ]
    axes.errorbar(
        [of.value for of in across], [of.value for of in up], xerr=bars[0], yerr=bars[1], elinewidth=0.5, **look
    )


def _name(row: Row) -> str:
    """What a row's line is called: the method, a line of its own for its calibrated schedules."""
    name = method_title(row.runs[0])
    if is_calibrated(row.runs[0]):
        name += " calibrated" + (" on these records" if any(run.calibrated_on for run in row.runs) else "")
    return f"{name} [{row.conditions}]" if row.conditions else name
