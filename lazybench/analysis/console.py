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


def frame_table(frame: "pd.DataFrame", columns: Sequence[tuple[str, str, str]], left: int = 1) -> str:
    """Format a frame's columns, given as title, name and format, as far as it has them."""
    columns = [column for column in columns if column[1] in frame]
    cells = [texts(frame, name, form) for _, name, form in columns]
    return table([title for title, _, _ in columns], list(zip(*cells, strict=True)), left)


def texts(frame: "pd.DataFrame", name: str, form: str, gap: str = "-") -> list[str]:
    """Format a column's numbers, followed by its interval from `name_low` to `name_high` if there is one."""
    from pandas import notna  # takes long to import

    def text(values: Sequence[float]) -> str:
        numbers = [form.format(value) for value in values if notna(value)]
        return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]" if len(set(numbers)) > 1 else (numbers or [gap])[0]

    columns = [key for key in (name, f"{name}_low", f"{name}_high") if key in frame]
    return [text(values) for values in frame[columns].itertuples(index=False)]
