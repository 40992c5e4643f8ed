"""Tables as text for the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

if TYPE_CHECKING:
    import pandas as pd


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Format rows of text; the first `left` columns are aligned left, the others right."""
    sides = ["left"] * left + ["right"] * (len(header) - left)
    return tabulate(rows, header, "simple", disable_numparse=True, colalign=sides if rows else None)


def frame_table(frame: "pd.DataFrame", columns: Sequence[tuple[str, str, str]]) -> str:
    """Format the columns that a frame has among `columns`, each a title, a name and a format."""
    cells = [(title, texts(frame, name, form)) for title, name, form in columns if name in frame]
    return table([title for title, _ in cells], list(zip(*(column for _, column in cells), strict=True)))


def texts(frame: "pd.DataFrame", name: str, form: str, gap: str = "-") -> list[str]:
    """Format a column's numbers, each with its interval from `name_low` to `name_high` if that has a width."""
    columns = [frame.get(f"{name}{end}", frame[name]) for end in ("", "_low", "_high")]
    value, low, high = (
        column.map(form.format, na_action="ignore").astype(object).where(column.notna(), gap) for column in columns
    )
    has_interval = (low != gap) & ((value != low) | (value != high))
    return value.mask(has_interval, value + " [" + low + ", " + high + "]").tolist()
