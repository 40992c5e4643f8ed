"""Figure 5: what each method pays in score for its TTFT speedup."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from lazybench.analysis.averages import SCORE, TTFT
from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.cells import cell, part_of
from lazybench.analysis.labels import colour, is_calibrated, method_title, task_title
from lazybench.report.figures.style import (
    PALE,
    REFERENCE,
    around,
    columns,
    finish,
    method_lines,
    of_rows,
    panels,
    span,
    wrapped,
)

CAPTION = (
    "Figure 5. TTFT speedup against score, a line a method, a point a strength, which Table 1 names. Bars: 95% "
    "intervals over records, where they are enough for one; n: records behind a point. Each panel has its own scores "
    "(LazyLLM: schedules of two stages or more, if there are any; calibrated: found on other records, unless the "
    "legend says on these)"
)
NEEDS = "-m +experiment=figure5"


def draw(block: Block) -> Figure | None:
    """A panel a task; None unless a method has points at two strengths or more on a task."""
    points = pd.DataFrame([point for task, names in block.tasks().items() for point in _points(block, task, names)])
    lines = points[points["method"] != "baseline"] if len(points) else points
    if lines.empty or lines.groupby(["task", "line"]).size().max() < 2:
        return None
    methods = lines.drop_duplicates("line")
    looks = method_lines({of.line: (of.method, of.colour) for of in methods.itertuples()})
    tasks = lines["task"].unique()
    figure, grid = panels(len(tasks), 1.2, "TTFT speedup (×)", "score (0 to 100)", sharex=True)
    for axes, task in zip(grid, tasks, strict=True):
        for _, level in points[(points["method"] == "baseline") & (points["task"] == task)].iterrows():
            axes.axhline(level["score"], label=level["line"], **REFERENCE)
        axes.axvline(1, color=PALE, linewidth=0.6)
        here = lines[lines["task"] == task].sort_values("speedup")
        for name, look in looks.items():
            of = here[here["line"] == name]
            bars = {"xerr": around(of, "speedup"), "yerr": around(of, "score"), "elinewidth": 0.5}
            axes.errorbar(of["speedup"], of["score"], label=name, **bars, **look)
        axes.set_title(wrapped(f"{task_title(task)}, n={span(here['records'])}", 24))
    grid[0].set_xscale("log", base=2)
    grid[0].xaxis.set_major_locator(LogLocator(2, subs=(1, 1.5)))
    grid[0].xaxis.set_minor_locator(NullLocator())
    grid[0].xaxis.set_major_formatter("{x:g}")
    finish(figure, of_rows(block, block.compared))
    return figure


def _points(block: Block, task: str, members: list[str]) -> Iterator[dict[str, object]]:
    """A point a row that has what the figure shows of it."""
    for row in block.compared:
        parts = {task: part_of(row, members)}
        score, speedup = cell(parts, SCORE), cell(parts, TTFT[0]).estimate
        if score.estimate is not None and (speedup is not None or row.method == "baseline"):
            of = {"task": task, "line": _name(row), "method": row.method, "colour": colour(row.runs[0])}
            yield of | {"records": score.records} | columns("score", score.estimate) | columns("speedup", speedup)


def _name(row: Row) -> str:
    """What a row's line is called: the method, a line of its own for its calibrated schedules."""
    name = method_title(row.runs[0])
    if is_calibrated(row.runs[0]):
        name += " calibrated" + (" on these records" if any(run.calibrated_on for run in row.runs) else "")
    return f"{name} [{row.conditions}]" if row.conditions else name
