"""Figure 6: which layer prunes, and how much it keeps."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from lazybench.analysis.averages import SCORE
from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.cells import cell, part_of
from lazybench.analysis.intervals import Estimate
from lazybench.analysis.labels import method_title, stages, task_title
from lazybench.data.facts import CHINESE
from lazybench.report.figures.style import REFERENCE, around, canvas, columns, finish, line, of_rows, wrapped

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
    rows = single if members else []
    points = pd.DataFrame([columns("score", _score(row, members)) for row in rows])
    points["layer"] = [float(stages(row.runs[0])[0][0].removesuffix("%")) for row in rows]
    points["keep"] = [-stages(row.runs[0])[0][1] for row in rows]
    points["under"] = [row.conditions for row in rows]
    lines = [(name, of.sort_values("layer")) for name, of in points.groupby(["keep", "under"])]
    if not any(len(of) > 1 for _, of in lines):
        return None
    figure = canvas(2.1)
    axes = figure.add_subplot()
    baselines = [row for row in block.rows if row.method == "baseline" and _score(row, members)]
    for row in baselines:
        axes.axhline(_score(row, members).value, label=row.label, **REFERENCE)
    every = points["layer"].unique()
    for place, ((keep, under), of) in enumerate(lines):
        at = of["layer"] + (max(every) - min(every)) / 100 * (place - (len(lines) - 1) / 2)
        name = f"keep {-keep:g}" + (f" [{under}]" if under else "")
        axes.errorbar(at, of["score"], yerr=around(of, "score"), elinewidth=0.6, label=name, **line(place))
    of = f"mean of {len(members)} tasks" if len(members) > 1 else task_title(*members)
    axes.set(xlabel="depth that prunes (% of the layers)" if by_depth else "layer that prunes", xticks=every)
    axes.set_ylabel("score (0 to 100)")
    axes.set_title(wrapped(f"{method_title(single[0].runs[0])} of one stage: {of}", 50))
    finish(figure, of_rows(block, [*baselines, *single]))
    return figure


def _score(row: Row, tasks: Mapping[str, list[str]]) -> Estimate | None:
    """The row's score as the mean over some tasks and their datasets, where it has one of each."""
    return cell({task: part_of(row, members) for task, members in tasks.items()}, SCORE).estimate
