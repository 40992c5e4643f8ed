"""Tables as LaTeX floats as wide as the page; they need booktabs alone."""

import re

import pandas as pd

_SIGNS: dict[int, str] = str.maketrans(
    {sign: f"\\{sign}" for sign in "_%#&${}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", '"': "''"}
    # LaTeX's default encoding prints these as other signs, or not at all.
    | {"<": "$<$", ">": "$>$", "|": "$|$", "×": "$\\times$", "±": "$\\pm$", "−": "$-$", "≤": "$\\leq$"}
    | {"≥": "$\\geq$", "†": "$^\\dagger$", "—": "--", "–": "--", "…": "\\ldots{}"}
)


def escaped(text: str) -> str:
    """Escape a text for LaTeX."""
    return text.translate(_SIGNS)


def latex(name: str, caption: str, cells: pd.DataFrame) -> str:
    """Format a table as a float; repeated texts in its first column are blank.

    Of a cell with several lines the first is shown, with † if others have a remark in parentheses.
    """
    texts = cells.rename(columns=escaped).map(_first_line)
    first = texts.columns[0]
    is_new = texts[first] != texts[first].shift()
    texts[first] = ("\\addlinespace{} " + texts[first]).where(is_new, "")
    tabular = texts.style.hide(axis="index").to_latex(
        hrules=True,
        column_format="ll" + "r" * (cells.shape[1] - 2),
        environment="table*",
        position_float="centering",
        caption=escaped(caption),
        label="tab:" + re.sub("[^A-Za-z0-9.]+", "-", name),
    )
    return tabular.replace("\\centering", "\\centering\\footnotesize", 1)


def _first_line(cell: str) -> str:
    line, _, more = cell.partition("\n")
    return escaped(f"{line}†" if "(" in more else line)
