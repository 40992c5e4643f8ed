"""What a run prints for the person who started it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def scores_table(scores: Mapping[str, Any]) -> str:
    """Scores and speedups per dataset, then per task."""
    rows = [_row(name, numbers) for name, numbers in scores["datasets"].items()]
    rows += [_row(f"{task} (mean of datasets)", numbers) for task, numbers in scores["tasks"].items()]
    return table(("", "records", "score", "TTFT speedup", "generation speedup", "% prompt computed"), rows)


def _row(name: str, numbers: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        name,
        str(numbers["records"]),
        f"{numbers['score']:.2f}",
        _times(numbers["ttft_speedup"]),
        _times(numbers["generation_speedup"]),
        f"{100 * numbers['prompt_computed']:.2f}",
    )


def _times(speedup: float | None) -> str:
    return "not timed" if speedup is None else f"{speedup:.2f}x"
