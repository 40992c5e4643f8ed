"""The tables: their measures and rows, their numbers as a frame, and their cells as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from statistics import stdev
from typing import Any

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import MEAN, Measure, measured, ran, undisturbed
from lazybench.analysis.console import texts
from lazybench.analysis.grouping import KEY, Block, Row, agree
from lazybench.analysis.intervals import Estimate
from lazybench.analysis.labels import title_of
from lazybench.report import paper
from lazybench.report.caveats import floors

NONE = "—"


@dataclass(frozen=True)
class Spec:
    """The measures and rows of a table."""

    name: str  # stem of its files
    title: str
    measures: tuple[Measure, ...]
    in_paper: tuple[str, ...] = ()  # keys of the measures that the paper gives numbers for
    skip: tuple[str, ...] = ()  # methods without rows


_ANSWERS = (averages.SCORE, averages.SCORE_DIFFERENCE, *averages.TTFT, averages.TTFT_SECONDS)
_GENERATION = (averages.COMPUTED, *averages.GENERATION, averages.EQUAL_LENGTH, *averages.DECODE_STEP)
_FIDELITY = (averages.TTFT[0], averages.GEOMETRIC_KL, averages.KL, averages.TOKENS, averages.ANSWERS)
SPECS = (
    Spec("fidelity", "Speed, and fidelity to the baseline", _FIDELITY, skip=("baseline",)),
    Spec("table1", "Table 1. Score and TTFT speedup", _ANSWERS, ("score", "ttft_speedup")),
    Spec("table2", "Table 2. Tokens computed and generation", _GENERATION, ("prompt_computed", "generation_speedup")),
    Spec("score_by_group", "Score by group of records", ()),  # `specs` has its measures
)
# How to read all tables, in Markdown.
READING = files("lazybench.report").joinpath("reading.md").read_text("utf-8")
_IN_PAPER = dict.fromkeys(key for spec in SPECS for key in spec.in_paper)
_ROW = ["model", "data", "task", "method", "label", "datasets", "datasets_of_task", "records", "failed", "disturbed"]
_ENDS = ("", "_low", "_high", "_records", "_note", "_seed_deviation", "_paper")


def specs(block: Block) -> tuple[Spec, ...]:
    """Return `SPECS` with the groups of the block's datasets."""
    groups = dict.fromkeys(group for run in block.runs for name in run.datasets for group in run.facts[name].groups)
    return (*SPECS[:-1], replace(SPECS[-1], measures=tuple(map(averages.group_measure, groups))))


def numbers(block: Block) -> pd.DataFrame:
    """Measure every row of a block on the mean over the tasks, then on every task that it was run on.

    Returns:
        A line a task and row: `model`, `data`, `task`, `method`, `label`; `datasets` of `datasets_of_task`; the numbers
        of `records`, `failed` and `disturbed`. By each measure's key: its value; `_low` and `_high`, its interval;
        `_records`, their number; `_note`, for a missing value the reason; for some measures `_seed_deviation`, and
        `_paper`, the number printed there. `title` is the task's.
    """
    tasks, averaged = block.tasks(), block.tasks_averaged()
    sections = {MEAN: averaged} if len(averaged) > 1 else {}
    sections |= {task: {task: names} for task, names in tasks.items()}
    measures, lines = {measure.key: measure for spec in specs(block) for measure in spec.measures}, []
    for section, members in sections.items():
        title = f"Mean of the {len(averaged)} tasks" if section == MEAN else title_of(section, "task")
        lines += [_line(block, row, section, members, measures) | {"title": title} for row in block.compared]
    frame = pd.DataFrame(lines).query("datasets > 0")
    return frame.astype({f"{key}{end}": float for key in measures for end in ("", "_low", "_high")})


def _line(
    block: Block, row: Row, section: str, tasks: Mapping[str, Sequence[str]], measures: Mapping[str, Measure]
) -> dict[str, Any]:
    """Measure a row on tasks, which are given with their datasets."""
    records, datasets, missing = row.select(tasks)
    complete = with_difference(ran(records), row, block)
    num_datasets = len(datasets), sum(map(len, tasks.values()))
    num_records = len(records), len(records) - len(complete), len(records) - len(undisturbed(records))
    values = (block.model, block.data, section, row.method, row.label, *num_datasets, *num_records)
    line: dict[str, Any] = dict(zip(_ROW, values, strict=True))
    for key, measure in measures.items():
        result = Estimate(note=missing) if missing else measured(complete, measure)
        line |= result.columns(key) | {f"{key}_records": result.records, f"{key}_note": result.note}
        if measure.by_seed:
            line[f"{key}_seed_deviation"] = stdev(result.seeds) if result.seeds else None
    if not missing and floors(block).issuperset(datasets):
        line["score_note"] = "floor"
    printed = paper.printed(row, section, datasets)
    return line | {f"{key}_paper": printed.get(key, "") for key in _IN_PAPER}


def with_difference(records: pd.DataFrame, row: Row, block: Block) -> pd.DataFrame:
    """Add `score_difference`: the score less the baseline's for the same record under the same conditions."""
    baselines = [other for other in block.baselines if all(agree(one, run) for one in other.runs for run in row.runs)]
    known = pd.concat([records.head(0), *(ran(baseline.records) for baseline in baselines)]).drop_duplicates(KEY)
    expected = known.set_index(KEY)["score"].reindex(pd.MultiIndex.from_frame(records[KEY]))
    return records.assign(score_difference=records["score"] - expected.to_numpy(float))


def select(spec: Spec, lines: pd.DataFrame) -> pd.DataFrame:
    """Return the lines and columns of `numbers` that a table shows; means over tasks without any value are left out."""
    if not any(is_taken(measure, lines) for measure in spec.measures):
        return lines.head(0)
    columns = [f"{measure.key}{end}" for measure in spec.measures for end in _ENDS]
    bare = (lines["task"] == MEAN) & lines[[measure.key for measure in spec.measures]].isna().all(axis=1)
    return lines[~lines["method"].isin(spec.skip) & ~bare].filter([*_ROW, "title", *columns])


def is_taken(measure: Measure, lines: pd.DataFrame) -> bool:
    """Return whether any run took this measure, so that it needs a column."""
    return bool((lines[f"{measure.key}_note"] != measure.absent).any())


def shown(measures: Iterable[Measure], lines: pd.DataFrame) -> pd.DataFrame:
    """Format a table: `Task`, `Method`, a column for each measure that was taken, and `Records`.

    A cell has a number, its deviation over seeds, its interval and its note, a line each; or a dash and the reason.
    """
    cells = {"Task": lines["title"], "Method": lines["label"]}
    for measure in measures:
        if is_taken(measure, lines):
            cells[measure.title] = lines.apply(_cell, axis=1, measure=measure)
        if measure.key in _IN_PAPER and lines[f"{measure.key}_paper"].any():
            cells[f"{measure.title}, paper"] = lines[f"{measure.key}_paper"]
    cells["Records"] = lines.apply(_records, axis=1)
    return pd.DataFrame(cells)


def _cell(line: pd.Series, measure: Measure) -> str:
    key, form = measure.key, f"{{:.{measure.digits}f}}".format
    parts = [NONE if pd.isna(line[key]) else form(line[key])]
    if pd.notna(line.get(f"{key}_seed_deviation")):
        parts.append(f"± {form(line[f'{key}_seed_deviation'])}")
    if pd.notna(line[f"{key}_low"]):
        parts.append(f"[{form(line[f'{key}_low'])}, {form(line[f'{key}_high'])}]")
    if line[f"{key}_note"]:
        parts.append(f"({line[f'{key}_note']})")
    return "\n".join(parts)


def _records(line: pd.Series) -> str:
    complete = line["datasets"] == line["datasets_of_task"]
    parts = [] if complete else [f"{line['datasets']} of {line['datasets_of_task']} datasets"]
    parts += [f"{line[key]} {key}" for key in ("failed", "disturbed") if line[key]]
    return f"{line['records']}\n({', '.join(parts)})" if parts else str(line["records"])


_PAIRED = (
    ("TTFT speedup, first (×)", "first_ttft_speedup", "{:.2f}"),
    ("TTFT speedup, second (×)", "second_ttft_speedup", "{:.2f}"),
    ("Records", "records", "{}"),
    ("KL ratio", "kl_ratio", "{:.2f}"),
    ("Records with KL", "kl_records", "{}"),
    ("Lower KL under first", "records_first_lower_kl", "{}"),
    ("p of KL (Holm)", "kl_p_holm", "{:.2g}"),
    ("Score difference", "score_difference", "{:+.2f}"),
)


def pairs_shown(pairs: pd.DataFrame) -> pd.DataFrame:
    """Format the paired tests: `First`, `Second` and the columns that have numbers."""
    cells = {"First": pairs["first"], "Second": pairs["second"]}
    for title, key, form in _PAIRED:
        if (pairs[key].fillna(0) != 0).any():
            cells[title] = [text.replace("-", "−") for text in texts(pairs, key, form, NONE)]
    return pd.DataFrame(cells)
