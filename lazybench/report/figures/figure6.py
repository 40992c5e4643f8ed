"""Figure 6: which layer prunes, and how much it keeps."""

from __future__ import annotations

from collections import defaultdict

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lazybench.report.averages import SCORE
from lazybench.report.blocks import Block, Row
from lazybench.report.cells import cell, part_of
from lazybench.report.figures.style import BLACK, canvas, legend_outside, line
from lazybench.report.labels import stages

CAPTION = "Figure 6. Score against the layer that prunes, a line a keep; from schedules of a single stage"
NEEDS = "-m +experiment=figure6"


def draw(block: Block) -> Figure | None:
    """A line a keep; the score is the mean over the tasks that every one of the runs has a number for."""
    single = [row for row in block.rows if row.method == "lazyllm" and len(stages(row.runs[0])) == 1]
    # Layers by number and by depth have no axis in common.
    numbered = [row for row in single if stages(row.runs[0])[0][0].isdigit()]
    by_depth, single = not numbered, numbered or single
    scores = {row.label: _scores(block, row) for row in block.rows}
    shared = [task for task in block.tasks() if single and all(task in scores[row.label] for row in single)]
    lines: dict[tuple[float, str], list[tuple[float, float]]] = defaultdict(list)
    for row in single:
        ((layer, keep),) = stages(row.runs[0])
        if shared:
            lines[keep, row.conditions].append((float(layer.removesuffix("%")), _mean(scores[row.label], shared)))
    if not any(len(points) > 1 for points in lines.values()):
        return None
    figure = canvas(5.2, 3.6)
    axes = figure.add_subplot()
    for row in block.rows:
        if row.method == "baseline" and all(task in scores[row.label] for task in shared):
            axes.axhline(_mean(scores[row.label], shared), color=BLACK, linestyle=":", linewidth=1.2, label=row.label)
    for place, (keep, under) in enumerate(sorted(lines, key=lambda key: (-key[0], key[1]))):
        layers, values = zip(*sorted(lines[keep, under]), strict=True)
        axes.plot(layers, values, label=f"keep {keep:g}" + (f" [{under}]" if under else ""), **line(place))
    tasks = f"mean of {len(shared)} tasks" if len(shared) > 1 else shared[0]
    where = "depth that prunes (% of the layers)" if by_depth else "layer that prunes"
    axes.set(xlabel=where, ylabel="score (0 to 100)", title=f"{block.title}: {tasks}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(0.06)
    legend_outside(figure)
    return figure


def _scores(block: Block, row: Row) -> dict[str, float]:
    """The row's score by task, where it has one."""
    found = {task: cell({task: part_of(row, members)}, SCORE).estimate for task, members in block.tasks().items()}
    return {task: of.value for task, of in found.items() if of is not None}


def _mean(scores: dict[str, float], tasks: list[str]) -> float:
    return sum(scores[task] for task in tasks) / len(tasks)
