"""What a report lacks, and the commands that would fill the gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.cells import part_of
from lazybench.analysis.labels import METHODS, is_calibrated, title_of
from lazybench.report.commands import again, like


@dataclass(frozen=True)
class Gap:
    """Something missing, and the command that makes it.

    Attributes:
        what: what is missing.
        command: the command, with `FOLDER` for the folders of the machine that made the runs: for files.
        here: the same with the folders of this machine, where they are known: to be run as it is.
    """

    what: str
    command: str
    here: str


def gaps(block: Block, undrawn: Sequence[tuple[str, str]]) -> list[Gap]:
    """Runs that are missing or unfinished, and figures that could not be drawn.

    Args:
        block: the runs of one model and data.
        undrawn: names of figures that lack runs, and the words of a command that makes those.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for (what, command), (_, here) in zip(*(_lacking(block, undrawn, here) for here in (False, True)), strict=True):
        found.setdefault((command, here), []).append(what)
    return [Gap("; ".join(what), *both) for both, what in found.items()]


def _lacking(block: Block, undrawn: Sequence[tuple[str, str]], here: bool) -> Iterator[tuple[str, str]]:
    """What is missing, and its command with this machine's folders or without."""
    for row in block.rows:
        for run in row.runs:
            if not run.finished:
                yield f"{row.label}: unfinished, {len(run.records)} records so far", again(run, here)
    yield from _to_run(block, here)
    for name, words in undrawn:
        yield f"{name}: no runs to draw it from", like(block.runs[0], words.split(), here)


def not_run(block: Block) -> dict[str, list[str]]:
    """The tasks, or datasets of a task, that each method lacks a run of; none are named where it lacks all of several.

    The methods are the paper's, and those that were run; the datasets those that the data has.
    """
    found = {}
    for method in dict.fromkeys([*METHODS, *(row.method for row in block.rows)]):
        missing = _missing(block, [row for row in block.rows if row.method == method])
        if missing:
            everything = {name for names in missing.values() for name in names} == block.has and len(missing) > 1
            found[method] = [] if everything else list(missing)
    return found


def _to_run(block: Block, here: bool) -> Iterator[tuple[str, str]]:
    """One command a method for what it lacks a run of."""
    for method, named in not_run(block).items():
        # Only its calibration says which records a calibrated schedule is for: no command for it here.
        rows = [row for row in block.rows if row.method == method]
        free = [run for row in rows if not any(map(is_calibrated, row.runs)) for run in row.runs]
        if method not in METHODS and not free:
            continue
        what = f"{title_of(method)}: no run" + (f" of {', '.join(named)}" if named else "")
        words = [f"task={','.join(named or ['all'])}", *(["-m"] if len(named) > 1 else [])]
        if free:
            yield what, like(max(free, key=lambda run: len(run.datasets)), words, here, own_method=True)
        else:
            yield what, like(block.runs[0], [f"method={method}", *words], here)


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
