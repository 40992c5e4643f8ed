"""The tables: which measures, which rows, and what is said below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lazybench.analysis.averages import (
    ANSWERS,
    COMPUTED,
    DECODE_STEP,
    EQUAL_LENGTH,
    FIRST_TOKEN_KL,
    GENERATION,
    KL,
    MEAN,
    OVER_KEEP_1,
    SCORE,
    SCORE_BY_LENGTH,
    TOKENS,
    TTFT,
    Measure,
)
from lazybench.analysis.blocks import Block
from lazybench.analysis.cells import NO_RUN, Cell, Part, cell, part_of, together
from lazybench.analysis.intervals import NOTE
from lazybench.analysis.labels import task_title, title_of
from lazybench.data.facts import CHINESE
from lazybench.report import paper
from lazybench.report.caveats import floors, notes


@dataclass(frozen=True)
class Spec:
    """What a table shows.

    Attributes:
        name: stem of its files.
        title: its caption.
        measures: its measures, in order.
        in_paper: keys of the measures that the paper gives numbers for.
        skip: methods it has no rows for.
        notes: what its measures are.
        by_length: whether it is only of data whose scores are shown by the records' length.
    """

    name: str
    title: str
    measures: tuple[Measure, ...]
    in_paper: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    by_length: bool = False


@dataclass(frozen=True)
class Line:
    """One line of a table: a row's part in a task, or in all of them together, and its cells by measure."""

    task: str
    title: str
    first: bool
    method: str
    label: str
    part: Part
    cells: dict[str, Cell]
    paper: dict[str, str]


@dataclass(frozen=True)
class Body:
    """A table's part about one model and data.

    Attributes:
        block: the model and data.
        lines: what was run, task by task, then the mean of the tasks.
        notes: what a reader must know of this block.
        missing: what was not run or measured, in one line; empty where nothing is missing.
    """

    block: Block
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    missing: str


@dataclass(frozen=True)
class Table:
    """A table, filled: a body a block, and what is said of all of them."""

    spec: Spec
    bodies: tuple[Body, ...]
    notes: tuple[str, ...]


_FASTER = "A speedup above 1 means faster."
_KEEP_1 = (
    "Keep = 1 is the same engine with nothing pruned: a speedup over it comes from pruning alone. A dash there: it was "
    "not timed, or the method does not run on that engine."
)
_MEAN = (
    "A task is the mean over its datasets, and the mean of the tasks is the mean over those. Failed records are "
    "counted, but no other number includes them."
)
_DISTURBED = (
    "Disturbed: records with a pass that other work on the machine disturbed (its process got less CPU time than "
    "timing.cpu_share of wall time times threads) each of the four times it was taken. They count in scores, but in no "
    "speedup."
)
_SEEDS = "±: standard deviation over the seeds of a method that has several; its numbers are means over them."
_FLOOR = "Floor: every method scores 0 on every record there, so the score shows nothing."
_ONE_STAGE = "Schedules of one stage are only in Figure 6, beside those of several stages."
_PAPER = (
    "The paper's values are over all records of these datasets, on an A100; it does not say which schedule, keep or "
    "ratio they were made with."
)

SPECS = (
    Spec(
        "table1",
        "Table 1. Score and TTFT speedup",
        (SCORE, *TTFT),
        in_paper=("score", "ttft_speedup"),
        notes=(
            "TTFT speedup: mean TTFT of the baseline over mean TTFT of the method, on the same records in the same "
            "process.",
            _FASTER,
        ),
    ),
    Spec(
        "table2",
        "Table 2. Prompt tokens computed, generation speedup and decode step",
        (COMPUTED, *GENERATION, EQUAL_LENGTH, *DECODE_STEP),
        in_paper=("prompt_computed", "generation_speedup"),
        notes=(
            "Prompt tokens computed: mean over layers of the share of prompt tokens that have keys and values there at "
            "the end of the generation; above 100 where a method computes tokens twice.",
            "Generation speedup: the baseline's mean generation time over the method's, as in the paper, even if their "
            "answers differ in length. At equal length: over what the method would take, at its TTFT and decode step, "
            "for as many tokens as the baseline's answer has.",
            "Decode step: (generation time - TTFT) / (new tokens - 1) of a record, without prefilling; its speedup is "
            "the baseline's mean over the method's.",
            _FASTER,
        ),
    ),
    Spec(
        "fidelity",
        "Fidelity to the baseline",
        (KL, FIRST_TOKEN_KL, TOKENS, ANSWERS),
        skip=("baseline",),
        notes=(
            "KL of next token: KL(baseline || method) of its distributions, mean over the first 16 tokens of the "
            "baseline's answer, which the method is given token by token; KL of first token: of the first alone.",
            "Identical tokens: share of the baseline's new tokens that are the same. Identical answers: share of "
            "records with exactly the baseline's answer.",
        ),
    ),
    Spec(
        "score_by_length",
        "Score by length",
        SCORE_BY_LENGTH,
        notes=(
            "By the whole record's length in words, as its file states it, whatever was cut from the prompt: below "
            "4,000, from 4,000 and below 8,000, from 8,000 on, as in LongBench's eval.py --e.",
        ),
        by_length=True,
    ),
)


def fill(spec: Spec, blocks: Sequence[Block], not_run: Sequence[dict[str, list[str]]]) -> Table:
    """Measure every row of every block on every task that it was run on.

    Args:
        spec: the table. It has no body for a block that it is not about.
        blocks: all runs.
        not_run: for each block the tasks and datasets that each method has no run of (`gaps.not_run`).
    """
    about = [found for found in zip(blocks, not_run, strict=True) if found[0].by_length or not spec.by_length]
    bodies = tuple(_body(spec, block, lacking) for block, lacking in about)
    return Table(spec, bodies, (*spec.notes, *_explained(spec, bodies)))


def absent(lines: Sequence[Line], of: Measure) -> bool:
    """Whether a measure was taken in no run that could give a number, so that it needs no column."""
    return {line.cells[of.key].reason for line in lines if not line.part.reason} == {of.absent}


def _body(spec: Spec, block: Block, not_run: dict[str, list[str]]) -> Body:
    lines = tuple(_lines(spec, block))
    return Body(block, lines, (*_tasks(block), *notes(block)), _missing(spec, lines, not_run))


def _lines(spec: Spec, block: Block) -> Iterator[Line]:
    """The lines of each task, then those of the mean over the tasks."""
    tasks = block.tasks_run()
    rows = [row for row in block.compared if row.method not in spec.skip]
    parts = [(row, {task: part_of(row, members) for task, members in tasks.items()}) for row in rows]
    sections = [(task, task_title(task), [task]) for task in tasks]
    averaged = _averaged(tasks)
    if len(averaged) > 1:
        sections.append((MEAN, f"Mean of the {len(averaged)} tasks", averaged))
    at_floor = floors(block) if SCORE in spec.measures else frozenset()
    for section, title, names in sections:
        first = True
        for row, of_tasks in parts:
            of = {task: of_tasks[task] for task in names}
            cells = {measure.key: cell(of, measure) for measure in spec.measures}
            whole = together(of.values())
            # A mean that lacks a task tells no more than the lines of the tasks do.
            if whole.reason == NO_RUN or (section == MEAN and not any(found.estimate for found in cells.values())):
                continue
            if whole.datasets and whole.datasets.keys() <= at_floor:
                cells[SCORE.key] = replace(cells[SCORE.key], note="floor")
            printed = {key: paper.value(row, section, whole.datasets.keys(), key) for key in spec.in_paper}
            yield Line(section, title, first, row.method, row.label, whole, cells, printed)
            first = False


def _averaged(tasks: dict[str, list[str]]) -> list[str]:
    """The tasks that the mean is over: none that is a dataset by itself, nor the Chinese part of the others."""
    return [task for task, members in tasks.items() if members != [task] and task != CHINESE]


def _tasks(block: Block) -> list[str]:
    """Which datasets each task that was run is the mean over, and what scores them."""
    facts = {name: fact for run in block.runs for name, fact in run.facts.items()}
    tasks, said = block.tasks_run(), []
    for task, members in tasks.items():
        of_metric: dict[str, list[str]] = {}
        for name in members:
            of_metric.setdefault(facts[name].metric, []).append(name)
        text = ", ".join(f"{', '.join(names)} ({metric})" for metric, names in of_metric.items())
        said.append(text if members == [task] else f"{task_title(task)}: {text}")
    averaged = ", ".join(map(task_title, _averaged(tasks)))
    mean = [f"the mean of the tasks is over {averaged}"] if len(_averaged(tasks)) > 1 else []
    return [f"tasks, their datasets and, in brackets, the metric of the score: {'; '.join(said)}", *mean]


def _missing(spec: Spec, lines: Sequence[Line], not_run: dict[str, list[str]]) -> str:
    said: dict[str, list[str]] = {}
    for method, tasks in sorted(not_run.items(), key=lambda found: bool(found[1])):
        if method not in spec.skip:
            where = " on " + ", ".join(map(task_title, tasks)) if tasks else ""
            said.setdefault(f"not run{where}", []).append(title_of(method))
    for of in spec.measures if lines else ():
        if absent(lines, of):
            said.setdefault(of.absent, []).append(of.title)
    text = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in said.items())
    return text[:1].upper() + text[1:]


def _explained(spec: Spec, bodies: Sequence[Body]) -> Iterator[str]:
    """What the numbers are made of, and the marks that there are in these tables."""
    lines = [line for body in bodies for line in body.lines]
    cells = [cell for line in lines for cell in line.cells.values()]
    if any(line.cells[of.key].estimate for line in lines for of in spec.measures if of in OVER_KEEP_1):
        yield _KEEP_1
    yield _MEAN
    if any(cell.estimate and cell.estimate.low is not None for cell in cells):
        yield NOTE
    if any(cell.seed_deviation is not None for cell in cells):
        yield _SEEDS
    if any(line.part.disturbed for line in lines):
        yield _DISTURBED
    if any(cell.note == "floor" for cell in cells):
        yield _FLOOR
    if any(body.block.compared != list(body.block.rows) for body in bodies):
        yield _ONE_STAGE
    if any(value for line in lines for value in line.paper.values()):
        yield _PAPER
