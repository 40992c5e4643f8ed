"""Tables as Markdown, for people, and as CSV, for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from lazybench.analysis.cells import Cell
from lazybench.analysis.paired import TITLE, Comparison
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
    return _lines(rows)


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in ([text.replace("|", "\\|") for text in row] for row in rows)]


def markdown_pairs(comparisons: Sequence[Comparison], warnings: Sequence[str]) -> str:
    """The paired tests for people, one part a model and data."""
    text = [f"# {TITLE}", "", *(f"> **Warning:** {warning}\n>" for warning in warnings)]
    for of in comparisons:
        rows = [["First", "Second", *of.heads], ["---"] * 2 + ["---:"] * len(of.heads)]
        rows += [[pair.first, pair.second, *cells] for pair, cells in zip(of.pairs, of.texts, strict=True)]
        text += ["", f"## {of.block.head}", "", *_lines(rows), "", of.caption]
    return "\n".join(text) + "\n"


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


def csv_pairs(comparisons: Sequence[Comparison], _: Sequence[str] = ()) -> str:
    """Every number of the paired tests; p as it comes from the test, and corrected for the comparisons of its part."""
    header = ["model", "data", "first", "second", "first_ttft_speedup", "second_ttft_speedup", "records"]
    header += ["kl_records", "first_kl", "second_kl", "kl_ratio", "records_first_lower_kl", "records_equal_kl"]
    header += ["kl_p", "kl_p_holm", "comparisons", "kl_missing"]
    header += ["score_difference", "score_difference_low", "score_difference_high"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for whole in comparisons:
        for pair in whole.pairs:
            row = [whole.block.model, whole.block.data, pair.first, pair.second, *map(_short, pair.speedups)]
            row.append(pair.records)
            if (of := pair.divergence) is None:
                row += [0, *[""] * 7, whole.tests, "not traced"]
            else:
                row += [of.records, *map(_short, (*of.means, of.ratio)), of.lower, of.equal]
                row += [_short(of.p), _short(of.adjusted), whole.tests, "too few records" if of.p is None else ""]
            found = pair.difference
            writer.writerow([*row, *map(_short, (found.value, found.low, found.high))])
    return out.getvalue()


def _numbers(cell: Cell) -> list[str | int]:
    found = cell.estimate
    values = [None] * 3 if found is None else [found.value, found.low, found.high]
    return [*map(_short, values), cell.records, cell.reason, cell.note]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
