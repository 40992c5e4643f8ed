"""Figure 5: what each method pays in score for its TTFT speedup."""

from __future__ import annotations

from collections import defaultdict

from matplotlib.figure import Figure

from lazybench.report.averages import SCORE, TTFT
from lazybench.report.blocks import Block, Row
from lazybench.report.caveats import floors
from lazybench.report.cells import cell, part_of
from lazybench.report.figures.style import BLACK, canvas, legend_outside, method_line
from lazybench.report.labels import colour, is_calibrated, method_title, task_title

CAPTION = (
    "Figure 5. TTFT speedup against score, a line a method with its strengths as points (lazyllm: schedules of two "
    "stages or more, if there are any; calibrated: found on other records, unless the legend says on these); the "
    "tables have the confidence intervals"
)
NEEDS = "-m +experiment=figure5"
_LEAST_SPAN = 2  # points of score


def draw(block: Block) -> Figure | None:
    """A panel a task; None unless a method has points at two strengths or more on a task."""
    tasks = block.tasks()
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    levels: dict[str, dict[str, float]] = defaultdict(dict)
    met: dict[str, Row] = {}
    for task, members in tasks.items():
        points: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in block.compared:
            parts = {task: part_of(row, members)}
            score, speedup = cell(parts, SCORE).estimate, cell(parts, TTFT[0]).estimate
            if score is not None and row.method == "baseline":
                levels[task][_name(row)] = score.value
            elif score is not None and speedup is not None:
                points[_name(row)].append((speedup.value, score.value))
                met[_name(row)] = row
        if points:
            panels[task] = points
    if not any(len(line) > 1 for points in panels.values() for line in points.values()):
        return None
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = canvas(2.5 * columns + 0.6, 2.2 * lines + 0.7)
    at_floor = floors(block)
    names = sorted(met)
    for place, (task, points) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(lines, columns, place)
        for name, level in levels[task].items():
            axes.axhline(level, color=BLACK, linestyle=":", linewidth=1.2, label=name)
        for name in names:
            if name in points:
                speedups, scores = zip(*sorted(points[name]), strict=True)
                look = method_line(_title(met[name]), names.index(name), colour(met[name].runs[0]))
                axes.plot(speedups, scores, label=name, **look)
        axes.axvline(1, color="#888888", linewidth=0.8)
        axes.margins(0.1)
        low, high = axes.get_ylim()
        if high - low < _LEAST_SPAN:  # else noise, or nothing at all, would fill the panel
            axes.set_ylim((low + high - _LEAST_SPAN) / 2, (low + high + _LEAST_SPAN) / 2)
        floor = " (floor: shows nothing)" if set(tasks[task]) <= at_floor else ""
        axes.set(title=task_title(task) + floor, xlabel="TTFT speedup (×)" if place > len(panels) - columns else None)
    figure.supylabel("score (0 to 100)", fontsize=9)
    figure.suptitle(block.title, fontsize=9)
    legend_outside(figure)
    return figure


def _name(row: Row) -> str:
    """What a row's line is called."""
    return f"{_title(row)} [{row.conditions}]" if row.conditions else _title(row)


def _title(row: Row) -> str:
    """A row's method; its calibrated schedules have a line of their own."""
    title = method_title(row.runs[0])
    if not is_calibrated(row.runs[0]):
        return title
    return f"{title} calibrated" + (" on these records" if any(run.calibrated_on for run in row.runs) else "")
