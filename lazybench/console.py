"""What a run prints for the person who started it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns of text: the first `left` of them to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [cell.ljust(width) for cell, width in zip(row[:left], widths[:left], strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(row[left:], widths[left:], strict=True)]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def scores_table(scores: Mapping[str, Any]) -> str:
    """Scores and speedups per dataset, then per task; records that failed are counted where there are any.

    Behind the score of a method with several seeds stands the standard deviation over them.
    """
    named = [*scores["datasets"].items()]
    named += [(f"{task} (mean of datasets)", numbers) for task, numbers in scores["tasks"].items()]
    header = ["", "records", "score", "TTFT speedup", "generation speedup", "% prompt computed"]
    rows = [_row(name, numbers) for name, numbers in named]
    if any(numbers["failed"] for _, numbers in named):
        header.append("failed")
        rows = [[*row, str(numbers["failed"])] for row, (_, numbers) in zip(rows, named, strict=True)]
    return table(header, rows)


def _row(name: str, numbers: Mapping[str, Any]) -> list[str]:
    seeds = numbers.get("score_by_seed")
    return [
        name,
        str(numbers["records"]),
        _number(numbers["score"], "{:.2f}") + (f" ± {stdev(seeds):.2f}" if seeds else ""),
        _number(numbers["ttft_speedup"], "{:.2f}x"),
        _number(numbers["generation_speedup"], "{:.2f}x"),
        _number(numbers["prompt_computed"], "{:.2%}").removesuffix("%"),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
