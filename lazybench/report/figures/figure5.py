"""Figure 5: what each method pays in score for its TTFT speedup."""

from __future__ import annotations

from collections import defaultdict

from matplotlib.figure import Figure

from lazybench.report.blocks import Block, Row
from lazybench.report.figures.style import BLACK, canvas, legend_outside, method_line
from lazybench.report.labels import is_calibrated, task_title
from lazybench.report.measures import SCORE, TTFT, measure
from lazybench.report.notes import floors
from lazybench.report.parts import part_of

CAPTION = (
    "Figure 5. TTFT speedup against score, a line a method with its strengths as points (lazyllm: schedules of two "
    "stages or more, where there are any; "
    "calibrated: found on other records, unless it says on these); the tables have the confidence intervals"
)
NEEDS = "-m +experiment=figure5"
_LEAST_SPAN = 2  # points of score


def draw(block: Block) -> Figure | None:
    """A panel a task; None unless a method has points at two strengths or more on a task."""
    rows = block.compared
    panels: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {}
    levels: dict[str, dict[str, float]] = {}
    tasks = block.tasks()
    for task, members in tasks.items():
        points: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for row in rows:
            part = part_of(row, members)
            score, speedup = measure(part, SCORE).estimate, measure(part, TTFT).estimate
            if score is not None and row.method == "baseline":
                levels.setdefault(task, {})[row.conditions] = score.value
            elif score is not None and speedup is not None:
                points[_series(row), row.conditions].append((speedup.value, score.value))
        if points:
            panels[task] = points
    if not any(len(line) > 1 for points in panels.values() for line in points.values()):
        return None
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = canvas(2.5 * columns + 0.6, 2.2 * lines + 0.7)
    at_floor = floors(block)
    others = sorted({key for points in panels.values() for key in points})
    for place, (task, points) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(lines, columns, place)
        for under, level in levels.get(task, {}).items():
            axes.axhline(level, color=BLACK, linestyle=":", linewidth=1.2, label=_name("baseline", under))
        for key in others:
            if key in points:
                speedups, scores = zip(*sorted(points[key]), strict=True)
                axes.plot(speedups, scores, label=_name(*key), **method_line(key[0], others.index(key)))
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


def _series(row: Row) -> str:
    """A method's line; what calibration found is a frontier of its own."""
    if not is_calibrated(row.runs[0]):
        return row.method
    seen = any(run.calibrated_on for run in row.runs)
    return f"{row.method} calibrated{' on these records' if seen else ''}"


def _name(method: str, under: str) -> str:
    return f"{method} [{under}]" if under else method
