"""The three tables: which measures, which rows, and what is said below them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lazybench.report import paper
from lazybench.report.blocks import Block, Row
from lazybench.report.intervals import NOTE
from lazybench.report.labels import METHODS, TASKS, task_title
from lazybench.report.measures import (
    ANSWERS,
    COMPUTED,
    DECODE_STEP,
    DECODE_STEP_OVER_KEEP_1,
    GENERATION,
    GENERATION_OVER_KEEP_1,
    KL,
    SCORE,
    TOKENS,
    TTFT,
    TTFT_OVER_KEEP_1,
    Cell,
    Measure,
    mean_of_tasks,
)
from lazybench.report.notes import floors, notes
from lazybench.report.parts import NO_RUN, Part, part_of, together

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
    method: str
    label: str
    part: Part
    cells: dict[str, Cell]
    paper: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table, filled: its lines by block, and what is said below them."""

    spec: Spec
    blocks: tuple[tuple[Block, tuple[Line, ...]], ...]
    notes: tuple[str, ...]


_COMMON = (
    NOTE,
    "A task is the mean over its datasets, and the mean of the tasks is the mean over those. Failed records are "
    "counted, and are in no other number.",
    "Floor: every method scores 0 on every record there, which shows nothing.",
    "A ratio above 1 is better than what it is set against.",
    "A dash is a missing number, with the reason behind it.",
    "Where there are schedules of several stages, those of one stage are in Figure 6 alone.",
)
_TIMED = (
    "Keep = 1 is the same engine with nothing pruned: a speedup over it is pruning's own part.",
    "Disturbed: records with a pass that stayed disturbed by other work on the machine (its process got less than "
    "timing.cpu_share of wall time times threads, three times again). They are in the scores and in no speedup.",
)
_PAPER = "The paper does not say which schedule, keep or ratio its rows were made with, and its machine was an A100."

SPECS = (
    Spec(
        "table1",
        "Table 1. Score and TTFT speedup",
        (SCORE, TTFT, TTFT_OVER_KEEP_1),
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
        (COMPUTED, GENERATION, GENERATION_OVER_KEEP_1, DECODE_STEP, DECODE_STEP_OVER_KEEP_1),
        in_paper=("prompt_computed", "generation_speedup"),
        notes=(
            "Prompt tokens computed: mean over layers of the share of prompt tokens that have keys and values there at "
            "the end of the generation; above 100 where a method computes tokens twice.",
            "Generation speedup: the baseline's mean generation time over the method's, whatever the lengths of their "
            "answers, as the paper has it.",
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
        (KL, TOKENS, ANSWERS),
        methods=METHODS[1:],
        skip=("baseline",),
        notes=(
            "KL of first token: KL(baseline || method) of the distributions of the first new token.",
            "Identical tokens: share of the baseline's new tokens that are the same. Identical answers: share of "
            "records with the baseline's very answer.",
            *_COMMON,
        ),
    ),
)


def fill(spec: Spec, blocks: list[Block]) -> Table:
    """Measure every row of every block on every task."""
    said = [*spec.notes, *(f"{block.title}: {note}" for block in blocks for note in notes(block))]
    return Table(spec, tuple((block, tuple(_lines(spec, block))) for block in blocks), tuple(said))


def _lines(spec: Spec, block: Block) -> list[Line]:
    tasks = block.tasks()
    rows = [row for row in block.compared if row.method not in spec.skip]
    parts = [(row, {task: part_of(row, members) for task, members in tasks.items()}) for row in rows]
    lines = []
    for task in tasks:
        of_task = [(row, {task: of[task]}) for row, of in parts]
        lines += _section(spec, block, task, task_title(task), of_task, whole=task in TASKS)
    averaged = [task for task, members in tasks.items() if members != [task]]  # not datasets by themselves
    if len(averaged) > 1:
        over = [(row, {task: of[task] for task in averaged}) for row, of in parts]
        lines += _section(spec, block, MEAN, f"Mean of the {len(averaged)} tasks", over, whole=True)
    at_floor = floors(block) if SCORE in spec.measures else frozenset()
    return [_marked(line) if line.part.datasets and line.part.datasets.keys() <= at_floor else line for line in lines]


def _marked(line: Line) -> Line:
    """The line with its score said to be at the floor."""
    return replace(line, cells=line.cells | {SCORE.key: replace(line.cells[SCORE.key], note="floor")})


def _section(
    spec: Spec, block: Block, task: str, title: str, rows: list[tuple[Row, dict[str, Part]]], whole: bool
) -> list[Line]:
    """The lines of one task, or of the mean over several.

    Args:
        spec: the table.
        block: the runs.
        task: the task's key.
        title: its name for people.
        rows: each row with its parts by task.
        whole: whether methods of the table without a run have a line, too.
    """
    ran = [(row.method, row.label, of) for row, of in rows if any(part.reason != NO_RUN for part in of.values())]
    met = {method for method, _, _ in ran}
    if whole:
        ran += [(method, method, {task: Part(reason=NO_RUN)}) for method in spec.methods if method not in met]
    # Methods the paper knows keep its order, runs or none.
    ran.sort(key=lambda line: METHODS.index(line[0]) if line[0] in METHODS else len(METHODS))
    return [
        Line(
            task,
            title,
            method,
            label,
            together(of.values()),
            {measure.key: mean_of_tasks(of, measure) for measure in spec.measures},
            {key: paper.value(block, task, method, key) for key in spec.in_paper},
        )
        for method, label, of in ran
    ]
