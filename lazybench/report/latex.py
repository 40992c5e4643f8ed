"""Tables as LaTeX floats as wide as a column of two; they need booktabs alone."""

import re
import textwrap

import pandas as pd

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
        cells: the first column names the groups, whose names are lines of their own if there are several; numbers in
            asterisks are bold.
    """
    groups = [(str(title), rows.iloc[:, 1:]) for title, rows in cells.groupby(cells.columns[0], sort=False)]
    if len(groups) == 1 or cells.columns[0] == "First":
        groups = [("", cells if cells.columns[0] == "First" else groups[0][1])]
    floats: list[list[str]] = [[]]
    for title, rows in groups:
        lines = [f"\\multicolumn{{{rows.shape[1]}}}{{l}}{{\\emph{{{escaped(title)}}}}} \\\\"] if title else []
        lines += [" & ".join(map(_cell, row)) + " \\\\" for row in rows.to_numpy()]
        if floats[-1] and len(floats[-1]) + len(lines) > _LINES:
            floats.append([])
        floats[-1] += ["\\addlinespace"] * bool(floats[-1]) + lines
    columns = groups[0][1].columns
    left = 2 if columns[0] == "First" else 1
    head = " & ".join("" if title == "Method" else _stacked(title) for title in columns) + " \\\\"
    label, texts = "tab:" + re.sub("[^A-Za-z0-9.]+", "-", name), []
    for number, lines in enumerate(floats, 1):
        part = f" Part {number} of {len(floats)}." if len(floats) > 1 else ""
        texts += [
            "\\begin{table}[tb]\\centering\\scriptsize\\setlength{\\tabcolsep}{2.5pt}",
            f"\\caption{{{escaped(caption)}{part}}}\\label{{{label}{f'-{number}' * bool(part)}}}",
            f"\\begin{{tabular}}{{{'l' * left + 'r' * (len(columns) - left)}}}\\toprule",
            *(head, "\\midrule", *lines, "\\bottomrule\\end{tabular}\\end{table}"),
        ]
    return "\n".join(texts) + "\n"


def _stacked(title: str) -> str:
    """Break a column's title into short lines."""
    lines = [escaped(line) for line in textwrap.wrap(title, 11, break_long_words=False)]
    return lines[0] if len(lines) == 1 else "\\shortstack{" + "\\\\".join(lines) + "}"


def _cell(text: str) -> str:
    number = re.fullmatch(r"\*\*([\d.]+)\*\*", text)
    return f"\\textbf{{{number[1]}}}" if number else escaped(text)
