"""The three tables: which measures, which rows, and what is said below them."""

from __future__ import annotations

from dataclasses import dataclass, field

from lazybench.report import paper
from lazybench.report.blocks import Block
from lazybench.report.bootstrap import RESAMPLES
from lazybench.report.labels import METHODS, TASKS
from lazybench.report.measures import ANSWERS, COMPUTED, GENERATION, KL, PER_TOKEN, SCORE, TOKENS, TTFT, Cell, Measure
from lazybench.report.measures import measure as measured
from lazybench.report.parts import NO_RUN, Part, part_of


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
    """One line of a table: a row's part in a task, and its cells by measure."""

    task: str
    method: str
    label: str
    part: Part
    cells: dict[str, Cell]
    paper: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table, filled: its lines by block."""

    spec: Spec
    blocks: tuple[tuple[Block, tuple[Line, ...]], ...]


_COMMON = (
    f"Brackets: 95% bootstrap confidence interval over records ({RESAMPLES:,} resamples within datasets, fixed seed); "
    "none where a dataset has a single record.",
    "A task is the mean over its datasets. Failed records are counted, and are in no other number.",
    "A dash is a missing number, with the reason behind it.",
    "Where there are schedules of several stages, those of one stage are in Figure 6 alone.",
)
_PAPER = "The paper does not say which schedule, keep or ratio its rows were made with, and its machine was an A100."

SPECS = (
    Spec(
        "table1",
        "Table 1. Score and TTFT speedup",
        (SCORE, TTFT),
        in_paper=("score", "ttft_speedup"),
        notes=(
            "TTFT speedup: mean TTFT of the baseline over mean TTFT of the method, on the same records in the same "
            "process.",
            "±: standard deviation over the seeds of a method that has several; its score is their mean.",
            *_COMMON,
            _PAPER,
        ),
    ),
    Spec(
        "table2",
        "Table 2. Prompt tokens computed and overall generation speedup",
        (COMPUTED, GENERATION, PER_TOKEN),
        in_paper=("prompt_computed", "generation_speedup"),
        notes=(
            "Prompt tokens computed: mean over layers of the share of prompt tokens that have keys and values there at "
            "the end of the generation.",
            "Generation speedup: mean generation time of the baseline over that of the method, as measured, whatever "
            "the lengths of their answers; per generated token: each mean divided by its mean number of new tokens.",
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
    return Table(spec, tuple((block, tuple(_lines(spec, block))) for block in blocks))


def _lines(spec: Spec, block: Block) -> list[Line]:
    lines = []
    for task, members in block.tasks().items():
        parts = [(row, part_of(row, members)) for row in block.compared if row.method not in spec.skip]
        ran = [(row.method, row.label, part) for row, part in parts if part.reason != NO_RUN]
        met = {method for method, _, _ in ran}
        if task in TASKS:
            ran += [(method, method, Part(reason=NO_RUN)) for method in spec.methods if method not in met]
        # Methods the paper knows keep its order, runs or none.
        ran.sort(key=lambda line: METHODS.index(line[0]) if line[0] in METHODS else len(METHODS))
        for method, label, part in ran:
            cells = {of.key: measured(part, of) for of in spec.measures}
            printed = {key: paper.value(block, task, method, key) for key in spec.in_paper}
            lines.append(Line(task, method, label, part, cells, printed))
    return lines
