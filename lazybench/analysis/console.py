"""Frames as texts, and tables for the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

if TYPE_CHECKING:
    import pandas as pd


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns of text: the first `left` of them to the left, the others to the right."""
    sides = ["left"] * left + ["right"] * (len(header) - left)
    return tabulate(rows, header, "simple", disable_numparse=True, colalign=sides if rows else None)


def frame_table(frame: "pd.DataFrame", columns: Sequence[tuple[str, str, str]], left: int = 1) -> str:
    """Columns of a frame, those it has of what is given by title, name and form; with `_low` and `_high`, if any."""
    columns = [column for column in columns if column[1] in frame]
    cells = [texts(frame, name, form) for _, name, form in columns]
    return table([title for title, _, _ in columns], list(zip(*cells, strict=True)), left)


def texts(frame: "pd.DataFrame", name: str, form: str, gap: str = "-") -> list[str]:
    """A column's numbers as text, with `name_low` and `name_high` behind them where they are and differ."""
    from pandas import notna  # takes long to import

    ends = [key for key in (f"{name}_low", f"{name}_high") if key in frame]
    found = []
    for values in frame[[name, *ends]].itertuples(index=False):
        shown = [form.format(value) for value in values if notna(value)]
        found.append(f"{shown[0]} [{shown[1]}, {shown[2]}]" if len(set(shown)) > 1 else shown[0] if shown else gap)
    return found
