"""Tables as text: cells first, then Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from html import escape

from lazybench.report import paper
from lazybench.report.averages import Measure
from lazybench.report.blocks import Block
from lazybench.report.cells import Cell
from lazybench.report.tables import Line, Table

_FIRST = ("Task", "Method", "Datasets", "Records", "Failed", "Disturbed")


def markdown(table: Table, warnings: Sequence[str]) -> str:
    """The table for people, one block a model and data."""
    text = [f"# {table.spec.title}", ""]
    text += [f"> **Warning:** {warning}" + "\n>" for warning in warnings]
    for block, lines in table.blocks:
        header = heading(table, block)
        rows = [[text.replace("|", "\\|") for text in cells(table, line)] for line in lines]
        align = ["---"] * 2 + ["---:"] * (len(header) - 2)
        text += ["", f"## {block.head}", "", *(f"| {' | '.join(row)} |" for row in (header, align, *rows))]
    text += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(text) + "\n"


def html(table: Table) -> str:
    """The table for the page."""
    text = [f"<h2>{escape(table.spec.title)}</h2>"]
    for block, lines in table.blocks:
        titles = heading(table, block)[1:]
        body = []
        for line in lines:
            if line.first:
                body.append(f'<tr><th class=task colspan="{len(titles)}">{escape(line.title)}</th></tr>')
            body.append(f"<tr>{_tags('td', cells(table, line)[1:])}</tr>")
        text.append(
            f"<h3>{escape(block.head)}</h3>\n<div class=wide><table>\n<thead><tr>{_tags('th', titles)}</tr></thead>\n"
            "<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>"
        )
    text.append(f"<ul class=notes>{''.join(f'<li>{escape(note)}</li>' for note in table.notes)}</ul>")
    return "\n".join(text)


def latex(table: Table, warnings: Sequence[str]) -> str:
    """The table for a paper; needs the package booktabs."""
    text = [f"% {table.spec.title}", "% needs \\usepackage{booktabs}"]
    text += [f"% Warning: {warning}" for warning in warnings]
    for block, lines in table.blocks:
        header = heading(table, block)
        text += [
            "",
            f"% {block.head}",
            f"\\begin{{tabular}}{{ll{'r' * (len(header) - 2)}}}",
            "\\toprule",
            _tex_row(header),
        ]
        for line in lines:
            text += [*(["\\midrule"] if line.first else []), _tex_row(cells(table, line))]
        text += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join([*text, "", *(f"% {note}" for note in table.notes)]) + "\n"


def csv_text(table: Table, _: Sequence[str] = ()) -> str:
    """Every number with its interval, the number of records behind it, and the reason where it is missing."""
    header = ["model", "data", "task", "method", "label", "datasets", "datasets_of_task", "records", "failed"]
    header.append("disturbed")
    for of in table.spec.measures:
        header += [of.key, *(f"{of.key}_{end}" for end in ("low", "high", "records", "missing", "note"))]
        header += [f"{of.key}_seed_deviation"] if of.by_seed else []
        header += [f"{of.key}_paper"] if of.key in table.spec.in_paper else []
    header += ["paper_model"] if table.spec.in_paper else []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for block, lines in table.blocks:
        for line in lines:
            part = line.part
            row = [block.model, block.data, line.task, line.method, line.label]
            row += [len(part.datasets), part.members or "", part.records, part.failed, part.disturbed]
            for of in table.spec.measures:
                row += _numbers(line.cells[of.key])
                row += [_short(line.cells[of.key].seed_deviation)] if of.by_seed else []
                row += [line.paper[of.key]] if of.key in table.spec.in_paper else []
            row += [paper.model_for(block)] if table.spec.in_paper else []
            writer.writerow(row)
    return out.getvalue()


def heading(table: Table, block: Block) -> list[str]:
    """The headings of a block's columns."""
    titles = list(_FIRST)
    for of in table.spec.measures:
        titles += [of.title] + ([paper.heading(block)] if of.key in table.spec.in_paper else [])
    return titles


def cells(table: Table, line: Line) -> list[str]:
    """The text of each cell of a line; a task is named on its first line."""
    part = line.part
    counts = (f"{len(part.datasets)}/{part.members}", str(part.records), str(part.failed), str(part.disturbed))
    texts = [line.title if line.first else "", line.label, *(counts if part.datasets else ["—"] * 4)]
    for of in table.spec.measures:
        texts.append(_cell(line.cells[of.key], of))
        texts += [line.paper[of.key] or "—"] if of.key in table.spec.in_paper else []
    return texts


def _cell(cell: Cell, of: Measure) -> str:
    found = cell.estimate
    if found is None:
        return f"— ({cell.reason})"
    text = f"{found.value:.{of.digits}f}"
    if cell.seed_deviation is not None:
        text += f" ± {cell.seed_deviation:.{of.digits}f}"
    if found.low is not None:
        text += f" [{found.low:.{of.digits}f}, {found.high:.{of.digits}f}]"
    return f"{text} ({cell.note})" if cell.note else text


def _numbers(cell: Cell) -> list[str | int]:
    found = cell.estimate
    values = [None] * 3 if found is None else [found.value, found.low, found.high]
    return [*map(_short, values), cell.records, cell.reason, cell.note]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _tags(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


_TEX: dict[int, str] = str.maketrans(
    {sign: f"\\{sign}" for sign in "_%#&${}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {"×": "$\\times$", "±": "$\\pm$", "—": "---", "…": "\\ldots{}"}
)


def _tex_row(texts: Iterable[str]) -> str:
    return " & ".join(text.translate(_TEX) for text in texts) + " \\\\"


FORMATS: dict[str, Callable[[Table, Sequence[str]], str]] = {"md": markdown, "csv": csv_text, "tex": latex}
