"""What a run prints for the person who started it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """Scores and speedups per dataset, per task, and over the tasks; what failed or was disturbed is counted.

    Behind the score of a method with several seeds stands the standard deviation over them. Columns that have no
    number in any row are left out. A speedup above 1 is faster.
    """
    named = [*scores["datasets"].items()]
    named += [(f"{task} (mean of datasets)", numbers) for task, numbers in scores["tasks"].items()]
    if scores["mean_of_tasks"] is not None:
        named.append((f"mean of {len(scores['tasks'])} tasks", scores["mean_of_tasks"]))
    columns = [("records", lambda of: str(of["records"])), ("score", _score), *_SPEEDUPS]
    columns.append(("% prompt computed", lambda of: _number(of["prompt_computed"], "{:.2%}").removesuffix("%")))
    columns += [(key, lambda of, key=key: str(of[key])) for key in ("failed", "disturbed")]
    shown = [
        (title, cells)
        for title, cell in columns
        if set(cells := [cell(numbers) for _, numbers in named]) - _NOTHING.get(title, {"-"})
    ]
    rows = [[name, *(cells[place] for _, cells in shown)] for place, (name, _) in enumerate(named)]
    return table(["", *(title for title, _ in shown)], rows)


def disturbances(scores: Mapping[str, Any]) -> str | None:
    """What is to be said of passes that other work on the machine had a part in; None where there were none."""
    parts = scores["datasets"].values()
    retaken, disturbed = (sum(numbers[key] for numbers in parts) for key in ("retaken", "disturbed"))
    if not retaken:
        return None
    said = f"other work on this machine: {retaken} passes were taken again"
    if not disturbed:
        return said
    advice = "end it, or set OMP_NUM_THREADS to the CPUs that are free, and run anew with rerun=true"
    return f"{said}; {disturbed} records stayed disturbed and are in no speedup ({advice})"


def _score(numbers: Mapping[str, Any]) -> str:
    seeds = numbers["score_by_seed"]
    return _number(numbers["score"], "{:.2f}") + (f" ± {stdev(seeds):.2f}" if seeds else "")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _speedup(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda numbers: _number(numbers[key], "{:.2f}x")


# Of the engine with nothing pruned the terminal shows the first token alone; the tables have all of it.
_SPEEDUPS = [
    ("TTFT speedup", _speedup("ttft_speedup")),
    ("over keep 1", _speedup("ttft_speedup_over_keep_1")),
    ("generation speedup", _speedup("generation_speedup")),
    ("decode step speedup", _speedup("decode_step_speedup")),
]
# What a column holds that shows nothing, where that is not a dash.
_NOTHING = {"failed": {"0"}, "disturbed": {"0"}, "records": set(), "score": set()}
