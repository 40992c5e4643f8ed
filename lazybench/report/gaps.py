"""What a report lacks, and the commands that would fill the gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lazybench.report import commands
from lazybench.report.blocks import Block, Row
from lazybench.report.labels import METHODS, is_calibrated
from lazybench.report.parts import part_of


@dataclass(frozen=True)
class Gap:
    """Something missing, and the command that makes it.

    Attributes:
        what: what is missing.
        command: the command, with `FOLDER` for the folders of whatever machine made the runs: for files.
        here: the same with the folders of this machine, where they are known: to be run as it is.
    """

    what: str
    command: str
    here: str


# What is missing, and its command with this machine's folders or without.
_Lack = tuple[str, Callable[[bool], str]]


def gaps(block: Block, undrawn: list[tuple[str, str]]) -> list[Gap]:
    """Runs that are missing or unfinished, and figures that could not be drawn.

    Args:
        block: the runs of one model and data.
        undrawn: names of figures that lack runs, and the words of a command that makes those.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for what, command in [*_unfinished(block), *_not_run(block), *_figures(block, undrawn)]:
        found.setdefault((command(False), command(True)), []).append(what)
    return [Gap("; ".join(what), *both) for both, what in found.items()]


def _unfinished(block: Block) -> list[_Lack]:
    return [
        (
            f"{row.label}: unfinished, {len(run.records)} records so far",
            lambda here, run=run: commands.again(run, here),
        )
        for row in block.rows
        for run in row.runs
        if not run.finished
    ]


def _not_run(block: Block) -> list[_Lack]:
    """One command a method for the tasks, or datasets of a task, that it has no run for.

    The methods are the paper's, and those that were run; the datasets those that the data has.
    """
    found = []
    methods = dict.fromkeys([*METHODS, *(row.method for row in block.rows)])
    for method in methods:
        rows = [row for row in block.rows if row.method == method]
        # A calibrated schedule may not be for these records: which it is for is calibration's to say.
        free = [row for row in rows if not any(map(is_calibrated, row.runs))]
        missing = _missing(block, rows)
        if not missing or (method not in METHODS and not free):
            continue
        tasks = list(missing)
        if {name for names in missing.values() for name in names} == block.has and len(tasks) > 1:
            what, tasks = f"{method}: no run", ["all"]
        else:
            what = f"{method}: no run of {', '.join(tasks)}"
        found.append((what, lambda here, of=method, free=free, tasks=tasks: _command(block, of, free, tasks, here)))
    return found


def _missing(block: Block, rows: list[Row]) -> dict[str, list[str]]:
    """The datasets that some rows have no run of, by the task or the dataset to ask for."""
    missing: dict[str, list[str]] = {}
    alone = {name: [name] for run in block.runs for name in run.has if run.facts[name].task is None}
    for task, members in (alone | block.tasks()).items():
        met = {dataset for row in rows for dataset in part_of(row, members).datasets}
        lacking = [dataset for dataset in members if dataset in block.has and dataset not in met]
        if lacking == members:
            missing[task] = lacking
        else:
            missing |= {dataset: [dataset] for dataset in lacking}
    return missing


def _command(block: Block, method: str, rows: list[Row], tasks: list[str], here: bool) -> str:
    """The command that runs a method on tasks: as in the row of it that covers most, where there is one."""
    words = [f"task={','.join(tasks)}", *(["-m"] if len(tasks) > 1 else [])]
    runs = [run for row in rows for run in row.runs]
    if not runs:
        return commands.like(block.runs[0], [f"method={method}", *words], here)
    return commands.of_method(max(runs, key=lambda run: len(run.datasets)), words, here)


def _figures(block: Block, undrawn: list[tuple[str, str]]) -> list[_Lack]:
    return [
        (
            f"{name}: no runs to draw it from",
            lambda here, words=words: commands.like(block.runs[0], words.split(), here),
        )
        for name, words in undrawn
    ]
