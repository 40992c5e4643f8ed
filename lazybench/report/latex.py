"""Tables as LaTeX floats as wide as the page; they need booktabs alone."""

import re
import textwrap
from collections.abc import Sequence

import pandas as pd

_ROWS = 36  # that fit a page with caption and note
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


def latex(name: str, caption: str, cells: pd.DataFrame, note: Sequence[str], warnings: Sequence[str]) -> str:
    """Format a table as one float, or several of whole groups of rows if they need more than a page.

    Args:
        name: of the label.
        caption: as text.
        cells: the first column names the groups; numbers in asterisks are bold. A first level of columns, if there are
            two, is a header above the other.
        note: sentences to stand below the table.
        warnings: comments in the file.
    """
    groups = [rows for _, rows in cells.groupby(cells.iloc[:, 0].ne(cells.iloc[:, 0].shift()).cumsum())]
    floats = groups[:1] or [cells]
    for rows in groups[1:]:
        if len(floats[-1]) + len(rows) > _ROWS:
            floats.append(rows)
        else:
            floats[-1] = pd.concat([floats[-1], rows])
    end = f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\raggedright\\scriptsize {escaped('. '.join(note))}.}}\n"
    label, texts = "tab:" + re.sub("[^A-Za-z0-9.]+", "-", name), []
    for number, part in enumerate(floats, 1):
        rows, several = part.map(_cell), len(floats) > 1
        first = rows.columns[0]
        is_new = rows[first] != rows[first].shift()
        rows[first] = ["\\addlinespace{} " + text if new else "" for text, new in zip(rows[first], is_new, strict=True)]
        tops, titles = rows.columns.get_level_values(0), rows.columns.get_level_values(-1)
        levels = [[_stacked(text, 20) for text in tops], [_stacked(text, 11) for text in titles]]
        has_header = cells.columns.nlevels == 2 and tops.nunique() > 2
        rows.columns = levels if has_header else levels[1]
        text = rows.style.hide(axis="index").to_latex(
            hrules=True,
            multicol_align="c",
            column_format="ll" + "r" * (rows.shape[1] - 2),
            environment="table*",
            position_float="centering",
            caption=escaped(caption) + f" Part {number} of {len(floats)}." * several,
            label=f"{label}-{number}" if several else label,
        )
        if has_header:
            ends = tops[2:].value_counts(sort=False).cumsum() + 2
            rules = [f"\\cmidrule(lr){{{start + 1}-{end}}}" for start, end in zip([2, *ends], ends, strict=False)]
            text = text.replace(" \\\\\n", f" \\\\\n{' '.join(rules)}\n", 1)
        texts.append(text.replace("\\centering", "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}", 1))
    texts[-1] = texts[-1].replace("\\end{table*}", end + "\\end{table*}")
    return "\n".join([*(f"% Warning: {' '.join(warning.split())}" for warning in warnings), *texts])


def _stacked(title: str, letters: int) -> str:
    """Break a column's title into lines."""
    lines = [escaped(line) for line in textwrap.wrap(title, letters)] or [""]
    return lines[0] if len(lines) == 1 else "\\shortstack{" + "\\\\".join(lines) + "}"


def _cell(text: str) -> str:
    number = re.fullmatch(r"\*\*([\d.]+)\*\*", text)
    return f"\\textbf{{{number[1]}}}" if number else escaped(text)
