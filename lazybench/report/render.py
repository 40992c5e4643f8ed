"""Tables as text: cells first, then Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from html import escape

from lazybench.report import paper
from lazybench.report.blocks import Block
from lazybench.report.measures import Cell, Measure
from lazybench.report.tables import Line, Table

_FIRST = ("Task", "Method", "Datasets", "Records", "Failed", "Disturbed")


def markdown(table: Table, warnings: Sequence[str]) -> str:
    """The table for people, one block a model and data."""
    text = [f"# {table.spec.title}", ""]
    text += [f"> **Warning:** {warning}" + "\n>" for warning in warnings]
    for block, lines in table.blocks:
        header = heading(table, block)
        rows = [[_pipe(cell) for cell in row] for row in cells(table, lines)]
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
        for row in cells(table, lines):
            if row[0]:
                body.append(f'<tr><th class=task colspan="{len(titles)}">{escape(row[0])}</th></tr>')
            body.append(f"<tr>{_tags('td', row[1:])}</tr>")
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
        for row, first in zip(cells(table, lines), _first_of_task(lines), strict=True):
            text += ["\\midrule"] if first else []
            text.append(_tex_row(row))
        text += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join([*text, "", *(f"% {note}" for note in table.notes)]) + "\n"


def csv_text(table: Table) -> str:
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


def cells(table: Table, lines: Iterable[Line]) -> list[list[str]]:
    """The text of each cell; a task is named on its first line."""
    return [
        [line.title if first else "", *_line(table, line)]
        for line, first in zip(lines, _first_of_task(lines), strict=True)
    ]


def _first_of_task(lines: Iterable[Line]) -> list[bool]:
    tasks = [line.task for line in lines]
    return [place == 0 or task != tasks[place - 1] for place, task in enumerate(tasks)]


def _line(table: Table, line: Line) -> list[str]:
    part = line.part
    texts = [line.label, f"{len(part.datasets)}/{part.members}"]
    texts += [str(count) for count in (part.records, part.failed, part.disturbed)]
    if not part.datasets:
        texts = [line.label, "—", "—", "—", "—"]
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


def _pipe(text: str) -> str:
    return text.replace("|", "\\|")


def _tags(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


_TEX: dict[int, str] = str.maketrans(
    {
        "\\": "\\textbackslash{}",
        "_": "\\_",
        "%": "\\%",
        "#": "\\#",
        "&": "\\&",
        "$": "\\$",
        "{": "\\{",
        "}": "\\}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "×": "$\\times$",
        "±": "$\\pm$",
        "—": "---",
        "…": "\\ldots{}",
    }
)


def _tex_row(texts: Iterable[str]) -> str:
    return " & ".join(text.translate(_TEX) for text in texts) + " \\\\"


FORMATS: dict[str, Callable[[Table, Sequence[str]], str]] = {
    "md": markdown,
    "csv": lambda table, _: csv_text(table),
    "tex": latex,
}
