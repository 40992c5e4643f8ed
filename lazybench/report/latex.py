"""Tables as LaTeX floats as wide as a column of two, or as the page if that is too narrow; they need only booktabs."""

import re
import textwrap

import pandas as pd

_LETTERS = 54  # in a line of a column
_LINES = 52  # of a float; more would not fit a page
_SIGNS: dict[int, str] = str.maketrans(
    {sign: f"\\{sign}" for sign in "_%#&${}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", '"': "''"}
    # LaTeX's default encoding prints these as other signs, or not at all.
    | {"<": "$<$", ">": "$>$", "|": "$|$", "×": "$\\times$", "±": "$\\pm$", "−": "$-$", "≤": "$\\leq$"}
    | {"≥": "$\\geq$", "—": "--", "–": "--", "…": "\\ldots{}"}
)


def escaped(text: str) -> str:
    """Escape a text for LaTeX."""
    return text.translate(_SIGNS)


def latex(name: str, caption: str, cells: pd.DataFrame) -> str:
    """Format a table as one float, or several of whole groups of rows if it is longer than a page.

    Args:
        name: of the label.
        caption: as text.
        cells: the first column names the groups of rows; numbers in asterisks, with intervals in brackets, are bold.
    """
    columns, floats = cells.columns[1:], [[]]
    for title, rows in cells.groupby(cells.columns[0], sort=False):
        lines = [f"\\multicolumn{{{len(columns)}}}{{l}}{{\\emph{{{escaped(str(title))}}}}} \\\\"]
        lines += [" & ".join(map(_cell, row)) + " \\\\" for row in rows[columns].to_numpy()]
        if floats[-1] and len(floats[-1]) + len(lines) > _LINES:
            floats.append([])
        floats[-1] += ["\\addlinespace"] * bool(floats[-1]) + lines
    widths = [max(map(len, [*cells[title], *textwrap.wrap(title, 9)])) + 1 for title in columns]
    kind = "table*" if sum(widths) > _LETTERS else "table"
    head = " & ".join(map(_stacked, columns)) + " \\\\"
    label, parts = "tab:" + re.sub("[^A-Za-z0-9.]+", "-", name), []
    for number, lines in enumerate(floats, 1):
        part = f" Part {number} of {len(floats)}." if len(floats) > 1 else ""
        parts += [
            f"\\begin{{{kind}}}[tb]\\centering\\scriptsize\\setlength{{\\tabcolsep}}{{2pt}}",
            f"\\caption{{{escaped(caption)}{part}}}\\label{{{label}{f'-{number}' * bool(part)}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}\\toprule",
            *(head, "\\midrule", *lines, f"\\bottomrule\\end{{tabular}}\\end{{{kind}}}"),
        ]
    return "\n".join(parts) + "\n"


def _stacked(title: str) -> str:
    """Break a column's title into short lines."""
    lines = [escaped(line) for line in textwrap.wrap(title, 9, break_long_words=False)]
    return lines[0] if len(lines) == 1 else "\\shortstack{" + "\\\\".join(lines) + "}"


def _cell(text: str) -> str:
    number = re.fullmatch(r"\*\*(-?[\d.]+( \[.*\])?)\*\*", text)
    return f"\\textbf{{{escaped(number[1])}}}" if number else escaped(text)
