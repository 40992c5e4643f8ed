"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns of text: the first `left` of them to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width) for place, (cell, width) in enumerate(cells)
        ).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def frame_table(frame: pd.DataFrame, columns: Sequence[tuple[str, str, str]], left: int = 1) -> str:
    """Columns of a frame, each given by its title, name and form; behind a number its `_low` and `_high`, if any."""
    rows = [[_spread(row, name, form) for _, name, form in columns] for row in frame.to_dict("records")]
    return table([title for title, _, _ in columns], rows, left)


def _spread(row: Mapping[str, Any], name: str, form: str) -> str:
    values = [row.get(key) for key in (name, f"{name}_low", f"{name}_high")]
    shown = [form.format(value) for value in values if value is not None and value == value]  # a gap is not a number
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if len(set(shown)) > 1 else shown[0] if shown else "-"
