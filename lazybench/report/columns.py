"""The columns of a table's body: which are worth their place, and the text of each cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lazybench.analysis.averages import Measure
from lazybench.report import paper
from lazybench.report.tables import Body, Line, Spec, absent

NONE = "—"
# What is so by the nature of a method needs no reason in each cell: a note says it once.
_TOLD_ONCE = "not on the engine"


@dataclass(frozen=True)
class Column:
    """A column: its heading, and the text of a line's cell, a number with what is to be said of it in brackets."""

    title: str
    text: Callable[[Line], str]


def columns(spec: Spec, body: Body) -> list[Column]:
    """The columns behind those of task and method, without measures that nobody took."""
    return [*_measures(spec, body), Column("Records", _records)]


def _records(line: Line) -> str:
    """The number of records, and what is to be said of them."""
    part = line.part
    said = [f"{len(part.datasets)} of {part.members} datasets"] if len(part.datasets) < part.members else []
    said += [f"{part.failed} failed"] if part.failed else []
    said += [f"{part.disturbed} disturbed"] if part.disturbed else []
    return f"{part.records} ({', '.join(said)})" if said else str(part.records)


def _measures(spec: Spec, body: Body) -> Iterator[Column]:
    for of in spec.measures:
        if not absent(body.lines, of):
            yield Column(of.title, lambda line, of=of: _measured(line, of))
        if any(line.paper.get(of.key) for line in body.lines):
            yield Column(paper.heading(body.block), lambda line, key=of.key: line.paper[key])


def _measured(line: Line, of: Measure) -> str:
    """The number with its deviation over seeds, its interval and its note; or why there is none."""
    cell = line.cells[of.key]
    found = cell.estimate
    if found is None:
        return NONE if cell.reason == _TOLD_ONCE else f"{NONE} ({cell.reason})"
    text = f"{found.value:.{of.digits}f}"
    if cell.seed_deviation is not None:
        text += f" ± {cell.seed_deviation:.{of.digits}f}"
    if found.low is not None:
        text += f" [{found.low:.{of.digits}f}, {found.high:.{of.digits}f}]"
    return f"{text} ({cell.note})" if cell.note else text
