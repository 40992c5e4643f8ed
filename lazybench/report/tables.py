"""The three tables: which measures, which rows, and what is said below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lazybench.report import paper
from lazybench.report.averages import (
    ANSWERS,
    COMPUTED,
    DECODE_STEP,
    FIRST_TOKEN_KL,
    GENERATION,
    KL,
    SCORE,
    TOKENS,
    TTFT,
    Measure,
)
from lazybench.report.blocks import Block
from lazybench.report.caveats import floors
from lazybench.report.cells import NO_RUN, Cell, Part, cell, part_of, together
from lazybench.report.intervals import NOTE
from lazybench.report.labels import METHODS, TASKS, task_title

MEAN = "mean_of_tasks"


@dataclass(frozen=True)
class Spec:
    """What a table shows.

    Attributes:
        name: stem of its files.
        title: its caption.
        measures: its measures, in order.
        in_paper: keys of the measures that the paper gives numbers for.
        methods: methods that have a row even without a run.
        skip: methods it has no rows for.
        notes: what a reader must know.
    """

    name: str
    title: str
    measures: tuple[Measure, ...]
    in_paper: tuple[str, ...] = ()
    methods: tuple[str, ...] = METHODS
    skip: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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
class Table:
    """A table, filled: its lines by block, and what is said below them."""

    spec: Spec
    blocks: tuple[tuple[Block, tuple[Line, ...]], ...]
    notes: tuple[str, ...]


_COMMON = (
    NOTE,
    "A task is the mean over its datasets, and the mean of the tasks is the mean over those. Failed records are "
    "counted, but no other number includes them.",
    "Floor: every method scores 0 on every record there, so the score shows nothing.",
    "A dash is a missing number; the reason follows it.",
    "If there are schedules of several stages, those of one stage are only in Figure 6.",
)
_TIMED = (
    "A speedup above 1 means faster.",
    "Keep = 1 is the same engine with nothing pruned: a speedup over it comes from pruning alone.",
    "Disturbed: records with a pass that other work on the machine disturbed (its process got less CPU time than "
    "timing.cpu_share of wall time times threads) each of the four times it was taken. They count in scores, but in no "
    "speedup.",
)
_PAPER = "The paper does not say which schedule, keep or ratio its rows were made with, and its machine was an A100."

SPECS = (
    Spec(
        "table1",
        "Table 1. Score and TTFT speedup",
        (SCORE, *TTFT),
        in_paper=("score", "ttft_speedup"),
        notes=(
            "TTFT speedup: mean TTFT of the baseline over mean TTFT of the method, on the same records in the same "
            "process.",
            *_TIMED,
            "±: standard deviation over the seeds of a method that has several; its numbers are means over them.",
            *_COMMON,
            _PAPER,
        ),
    ),
    Spec(
        "table2",
        "Table 2. Prompt tokens computed, generation speedup and decode step",
        (COMPUTED, *GENERATION, *DECODE_STEP),
        in_paper=("prompt_computed", "generation_speedup"),
        notes=(
            "Prompt tokens computed: mean over layers of the share of prompt tokens that have keys and values there at "
            "the end of the generation; above 100 where a method computes tokens twice.",
            "Generation speedup: the baseline's mean generation time over the method's, as in the paper, even if their "
            "answers differ in length.",
            "Decode step: (generation time - TTFT) / (new tokens - 1) of a record, without prefilling; its speedup is "
            "the baseline's mean over the method's.",
            *_TIMED,
            *_COMMON,
            _PAPER,
        ),
    ),
    Spec(
        "fidelity",
        "Fidelity to the baseline",
        (KL, FIRST_TOKEN_KL, TOKENS, ANSWERS),
        methods=METHODS[1:],
        skip=("baseline",),
        notes=(
            "KL of next token: KL(baseline || method) of its distributions, mean over the first 16 tokens of the "
            "baseline's answer, which the method is given token by token; KL of first token: of the first alone.",
            "Identical tokens: share of the baseline's new tokens that are the same. Identical answers: share of "
            "records with exactly the baseline's answer.",
            *_COMMON,
        ),
    ),
)


def fill(spec: Spec, blocks: Sequence[Block], notes: Sequence[str]) -> Table:
    """Measure every row of every block on every task.

    Args:
        spec: the table.
        blocks: all runs.
        notes: what is to be said of the blocks.
    """
    return Table(spec, tuple((block, tuple(_lines(spec, block))) for block in blocks), (*spec.notes, *notes))


def _lines(spec: Spec, block: Block) -> Iterator[Line]:
    """The lines of each task, then those of the mean over the tasks."""
    tasks = block.tasks()
    rows = [row for row in block.compared if row.method not in spec.skip]
    parts = [(row, {task: part_of(row, members) for task, members in tasks.items()}) for row in rows]
    sections = [(task, task_title(task), [task]) for task in tasks]
    averaged = [task for task, members in tasks.items() if members != [task]]  # not datasets by themselves
    if len(averaged) > 1:
        sections.append((MEAN, f"Mean of the {len(averaged)} tasks", averaged))
    at_floor = floors(block) if SCORE in spec.measures else frozenset()
    for section, title, names in sections:
        of_rows = [(row.method, row.label, {task: of[task] for task in names}) for row, of in parts]
        of_rows = [row for row in of_rows if any(part.reason != NO_RUN for part in row[2].values())]
        if section in TASKS or section == MEAN:
            met = {method for method, _, _ in of_rows}
            none = {task: Part(reason=NO_RUN) for task in names[:1]}
            of_rows += [(method, method, none) for method in spec.methods if method not in met]
        # Methods the paper knows keep its order, runs or none.
        of_rows.sort(key=lambda row: METHODS.index(row[0]) if row[0] in METHODS else len(METHODS))
        for place, (method, label, of) in enumerate(of_rows):
            cells = {measure.key: cell(of, measure) for measure in spec.measures}
            whole = together(of.values())
            if whole.datasets and whole.datasets.keys() <= at_floor:
                cells[SCORE.key] = replace(cells[SCORE.key], note="floor")
            printed = {key: paper.value(block, section, method, key) for key in spec.in_paper}
            yield Line(section, title, place == 0, method, label, whole, cells, printed)
