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
from lazybench.report.figures.style import REFERENCE, around, canvas, finish, line, of_rows, wrapped

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
    members = {task: tasks[task] for task in shared if task != CHINESE} or {task: tasks[task] for task in shared}
    lines: dict[tuple[float, str], list[tuple[float, Estimate]]] = defaultdict(list)
    for row in single if members else ():
        ((layer, keep),) = stages(row.runs[0])
        lines[-keep, row.conditions].append((float(layer.removesuffix("%")), _score(row, members)))
    if not any(len(points) > 1 for points in lines.values()):
        return None
    figure = canvas(2.1)
    axes = figure.add_subplot()
    baselines = [row for row in block.rows if row.method == "baseline" and _score(row, members)]
    for row in baselines:
        axes.axhline(_score(row, members).value, label=row.label, **REFERENCE)
    every = sorted({layer for points in lines.values() for layer, _ in points})
    beside = (every[-1] - every[0]) / 100
    for place, ((keep, under), points) in enumerate(sorted(lines.items())):
        layers, scores = zip(*sorted(points, key=lambda point: point[0]), strict=True)
        values = [of.value for of in scores]
        axes.errorbar(
            [layer + beside * (place - (len(lines) - 1) / 2) for layer in layers],
            values,
            yerr=around(values, [of.low for of in scores], [of.high for of in scores]),
            elinewidth=0.6,
            label=f"keep {-keep:g}" + (f" [{under}]" if under else ""),
            **line(place),
        )
    of = f"mean of {len(members)} tasks" if len(members) > 1 else task_title(*members)
    axes.set(xlabel="depth that prunes (% of the layers)" if by_depth else "layer that prunes", xticks=every)
    axes.set_ylabel("score (0 to 100)")
    axes.set_title(wrapped(f"{method_title(single[0].runs[0])} of one stage: {of}", 50))
    finish(figure, of_rows(block, [*baselines, *single]))
    return figure


def _score(row: Row, tasks: Mapping[str, list[str]]) -> Estimate | None:
    """The row's score as the mean over some tasks and their datasets, where it has one of each."""
    return cell({task: part_of(row, members) for task, members in tasks.items()}, SCORE).estimate
