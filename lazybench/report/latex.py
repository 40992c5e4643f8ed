"""Tables as LaTeX, to be taken into a paper as they are: they need the package booktabs and nothing else."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby, zip_longest
from string import ascii_lowercase

from lazybench.analysis.paired import NAME, TITLE, Comparison
from lazybench.report.columns import columns
from lazybench.report.tables import Body, Table

# Characters of a heading, or of a method's label, before it goes on in another line.
_HEADING, _LABEL = 10, 20
_ROWS = 70  # rows that fit on a page with a caption
_SIGNS: dict[int, str] = str.maketrans(
    {sign: f"\\{sign}" for sign in "_%#&${}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "`": "\\textasciigrave{}"}
    # In LaTeX's usual encoding the first four print as others; behind the end of a row the last two have a meaning.
    | {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", '"': "''", "[": "{[}", "*": "{*}"}
    | {"×": "$\\times$", "±": "$\\pm$", "≤": "$\\leq$", "≥": "$\\geq$", "→": "$\\rightarrow$", "−": "$-$"}
    | {"—": "\\textemdash{}", "–": "\\textendash{}", "…": "\\ldots{}"}
)


def latex(table: Table, warnings: Sequence[str]) -> str:
    """The table, a `table*` a model and data, with what else is to be known in comments."""
    text = [_comment(table.spec.title), _comment("Needs \\usepackage{booktabs} and nothing else.")]
    text += [_comment(f"Warning: {warning}") for warning in warnings]
    for body in table.bodies:
        text += ["", _comment(body.block.head), *([_comment(body.missing)] if body.missing else [])]
        text += [_comment(note) for note in body.notes]
        text += _tables(table, body) if body.lines else []
    return "\n".join([*text, "", *map(_comment, table.notes)]) + "\n"


def latex_pairs(comparisons: Sequence[Comparison], warnings: Sequence[str]) -> str:
    """The paired tests, a `table*` a model and data, or further ones where they do not fit on a page."""
    text = [_comment(TITLE), _comment("Needs \\usepackage{booktabs} and nothing else.")]
    text += [_comment(f"Warning: {warning}") for warning in warnings]
    for of in comparisons:
        marks: dict[str, str] = {}
        parts: list[list[str]] = [[]]
        for pair, cells in zip(of.pairs, of.texts, strict=True):
            rows = _rows(pair.label, cells, marks)
            if parts[-1] and len(parts[-1]) + len(rows) > _ROWS:
                parts.append([])
            parts[-1] += rows
        said = f"{escaped(TITLE)}: {escaped(of.block.head)}. {escaped(of.caption)}"
        said = " ".join([said, *_marked(marks)])
        text += ["", _comment(of.block.head)]
        for number, rows in enumerate(parts, start=1):
            name = f"{NAME}-{of.block.model}-{of.block.data}"
            text += ["", *_float(name, said, ["Methods", *of.heads], ["\\midrule", *rows], number)]
    return "\n".join(text) + "\n"


def escaped(text: str) -> str:
    """A text as LaTeX prints it."""
    return re.sub("-(?=-)", "-{}", text.translate(_SIGNS))


def _tables(table: Table, body: Body) -> list[str]:
    """The body's tables: further ones where it is too long for a page."""
    shown = columns(table.spec, body)
    parts: list[list[list[str]]] = [[]]
    marks: dict[str, str] = {}
    for title, lines in groupby(body.lines, key=lambda line: line.title):
        section = ["\\midrule", f"\\multicolumn{{{len(shown) + 1}}}{{l}}{{\\textit{{{escaped(title)}}}}} \\\\"]
        section += [row for line in lines for row in _rows(line.label, [of.text(line) for of in shown], marks)]
        if parts[-1] and sum(map(len, parts[-1])) + len(section) > _ROWS:
            parts.append([])
        parts[-1].append(section)
    found = []
    name, said = f"{table.spec.name}-{body.block.model}-{body.block.data}", _caption(table, body, marks)
    heads = ["Method", *(column.title for column in shown)]
    for number, sections in enumerate(parts, start=1):
        found += ["", *_float(name, said, heads, [row for section in sections for row in section], number)]
    return found


def _float(name: str, caption: str, heads: Sequence[str], rows: list[str], number: int) -> list[str]:
    name += f"-{number}" if number > 1 else ""
    return [
        "\\begin{table*}",
        "\\centering",
        f"\\caption{{{caption}{' (Continued.)' if number > 1 else ''}}}",
        f"\\label{{tab:{re.sub('[^A-Za-z0-9.]+', '-', name)}}}",
        "\\smallskip",
        "\\footnotesize",
        "\\setlength{\\tabcolsep}{2.5pt}",
        f"\\begin{{tabular}}{{l{'r' * len(heads[1:])}}}",
        "\\toprule",
        _row([heads[0], *map(_stack, heads[1:])]),
        *rows,
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table*}",
    ]


def _rows(label: str, texts: Iterable[str], marks: dict[str, str]) -> list[str]:
    """A line's row of numbers, and below it what does not fit in there: intervals, and the rest of a long label."""
    first, *rest = (part for line in label.splitlines() for part in _wrapped(line, _LABEL))
    numbers, beside = zip(*(_cell(text, marks) for text in texts), strict=True)
    below = [beside] if any(beside) else []
    more = [_row(map(_small, [text, *texts])) for text, texts in zip_longest(rest, below, fillvalue="")]
    return [_row([escaped(first), *numbers]), *more, *(["\\addlinespace[2pt]"] if more else [])]


def _cell(text: str, marks: dict[str, str]) -> tuple[str, str]:
    """A cell's number with a letter for its note, and what stands below it.

    Args:
        text: the cell's text.
        marks: letters by the notes that they stand for; new ones are added.
    """
    text, _, note = text.removesuffix(")").partition(" (")
    number, _, beside = text.partition(" ")
    again, place = divmod(len(marks), len(ascii_lowercase))
    mark = marks.setdefault(note, ascii_lowercase[place] * (1 + again)) if note else ""
    return escaped(number) + (f"\\rlap{{$^{{{mark}}}$}}" if mark else ""), beside


def _small(text: str) -> str:
    return f"{{\\scriptsize {escaped(text)}}}" if text else ""


def _stack(title: str) -> str:
    lines = "\\\\".join(map(escaped, _wrapped(title, _HEADING)))
    return f"\\shortstack[r]{{{lines}}}" if "\\\\" in lines else lines


def _caption(table: Table, body: Body, marks: dict[str, str]) -> str:
    title = re.sub(r"^Table \d+\. ", "", table.spec.title)
    said = [f"{escaped(title)}: {escaped(body.block.head)}."]
    cells = [cell for line in body.lines for cell in line.cells.values()]
    if any(cell.estimate and cell.estimate.low is not None for cell in cells):
        said.append("Brackets: 95\\% confidence intervals over records.")
    if any(cell.seed_deviation is not None for cell in cells):
        said.append("$\\pm$: standard deviation over seeds.")
    return " ".join([*said, *_marked(marks)])


def _marked(marks: dict[str, str]) -> list[str]:
    """What the letters in a table stand for."""
    return [f"$^{{{mark}}}${escaped(note)}." for note, mark in marks.items()]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _comment(text: str) -> str:
    return f"% {' '.join(text.split())}"
