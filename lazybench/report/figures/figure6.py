"""Figure 6: which layer prunes, and how much it keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from matplotlib.figure import Figure

from lazybench.analysis.averages import SCORE
from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.cells import cell, part_of
from lazybench.analysis.intervals import Estimate
from lazybench.analysis.labels import method_title, stages, task_title
from lazybench.data.facts import CHINESE
from lazybench.report.figures.footer import of_rows
from lazybench.report.figures.style import BLACK, COLUMN, TEXT, below, canvas, line, ticks_at, wrapped

CAPTION = (
    "Figure 6. Score against the layer that prunes, a line a keep; from schedules of a single stage. Bars: 95% "
    "intervals over records, where they are enough for one; lines stand a little apart, so that no bar hides another"
)
NEEDS = "-m +experiment=figure6"


def draw(block: Block) -> Figure | None:
    """A line a keep; the score is the mean over the tasks, but `chinese`, that every run has a number for."""
    single = [row for row in block.rows if row.method == "lazyllm" and len(stages(row.runs[0])) == 1]
    # Layers by number and by depth have no axis in common.
    numbered = [row for row in single if stages(row.runs[0])[0][0].isdigit()]
    by_depth, single = not numbered, numbered or single
    tasks = block.tasks()
    shared = [task for task in tasks if all(_score(row, {task: tasks[task]}) for row in single)]
    shared = [task for task in shared if task != CHINESE] or shared
    members = {task: tasks[task] for task in shared}
    lines: dict[tuple[float, str], list[tuple[float, Estimate]]] = defaultdict(list)
    for row in single:
        ((layer, keep),) = stages(row.runs[0])
        if shared and (score := _score(row, members)):
            lines[keep, row.conditions].append((float(layer.removesuffix("%")), score))
    if not any(len(points) > 1 for points in lines.values()):
        return None
    figure = canvas(COLUMN, 2.1)
    axes = figure.add_subplot()
    baselines = [row for row in block.rows if row.method == "baseline" and _score(row, members)]
    for row in baselines:
        level = _score(row, members)
        axes.axhline(level.value, color=BLACK, linestyle=":", linewidth=1, label=row.label)
    every = [layer for points in lines.values() for layer, _ in points]
    beside = (max(every) - min(every)) / 100  # or one keep's interval hides another's
    for place, (keep, under) in enumerate(sorted(lines, key=lambda key: (-key[0], key[1]))):
        points = sorted(lines[keep, under], key=lambda point: point[0])
        at = [layer + beside * (place - (len(lines) - 1) / 2) for layer, _ in points]
        label = f"keep {keep:g}" + (f" [{under}]" if under else "")
        style = line(place)
        axes.plot(at, [of.value for _, of in points], label=label, **style)
        for x, (_, of) in zip(at, points, strict=True):
            if of.low is not None:
                axes.plot([x, x], [of.low, of.high], color=style["color"], linewidth=0.6)
    of = f"mean of {len(shared)} tasks" if len(shared) > 1 else task_title(shared[0])
    where = "depth that prunes (% of the layers)" if by_depth else "layer that prunes"
    axes.set(xlabel=where, ylabel="score (0 to 100)")
    axes.set_title(wrapped(f"{method_title(single[0].runs[0])} of one stage: {of}", COLUMN - 0.5, TEXT))
    axes.margins(0.06)
    ticks_at(axes, every)
    below(figure, of_rows(block, [*baselines, *single]))
    return figure


def _score(row: Row, tasks: Mapping[str, list[str]]) -> Estimate | None:
    """The row's score as the mean over some tasks and their datasets, where it has one of each."""
    return cell({task: part_of(row, members) for task, members in tasks.items()}, SCORE).estimate
