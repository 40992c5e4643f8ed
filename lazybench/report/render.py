"""Tables as Markdown, for people, and as CSV, for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from lazybench.report.cells import Cell
from lazybench.report.columns import columns
from lazybench.report.tables import Body, Table


def markdown(table: Table, warnings: Sequence[str]) -> str:
    """The table for people, one part a model and data."""
    text = [f"# {table.spec.title}", "", *(f"> **Warning:** {warning}\n>" for warning in warnings)]
    for body in table.bodies:
        text += ["", f"## {body.block.head}", ""]
        if body.lines:
            text += [*_rows(table, body), ""]
        if body.missing:
            text += [body.missing, ""]
        text += [f"- {note}" for note in body.notes]
    text += ["", "## How to read it", "", *(f"- {note}" for note in table.notes)]
    return "\n".join(text) + "\n"


def _rows(table: Table, body: Body) -> list[str]:
    shown = columns(table.spec, body)
    rows = [
        ["Task", "Method", *(column.title for column in shown)],
        ["---"] * 2 + ["---:"] * len(shown),
        *(
            [line.title if line.first else "", line.label, *(column.text(line) for column in shown)]
            for line in body.lines
        ),
    ]
    return [f"| {' | '.join(row)} |" for row in ([text.replace("|", "\\|") for text in row] for row in rows)]


def csv_text(table: Table, _: Sequence[str] = ()) -> str:
    """Every number with its interval, the number of records behind it, and the reason where it is missing."""
    header = ["model", "data", "task", "method", "label", "datasets", "datasets_of_task", "records", "failed"]
    header.append("disturbed")
    for of in table.spec.measures:
        header += [of.key, *(f"{of.key}_{end}" for end in ("low", "high", "records", "missing", "note"))]
        header += [f"{of.key}_seed_deviation"] if of.by_seed else []
        header += [f"{of.key}_paper"] if of.key in table.spec.in_paper else []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for body in table.bodies:
        for line in body.lines:
            part = line.part
            row = [body.block.model, body.block.data, line.task, line.method, line.label]
            row += [len(part.datasets), part.members, part.records, part.failed, part.disturbed]
            for of in table.spec.measures:
                row += _numbers(line.cells[of.key])
                row += [_short(line.cells[of.key].seed_deviation)] if of.by_seed else []
                row += [line.paper[of.key]] if of.key in table.spec.in_paper else []
            writer.writerow(row)
    return out.getvalue()


def _numbers(cell: Cell) -> list[str | int]:
    found = cell.estimate
    values = [None] * 3 if found is None else [found.value, found.low, found.high]
    return [*map(_short, values), cell.records, cell.reason, cell.note]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
