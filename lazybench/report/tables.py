"""The tables: their measures and rows, their numbers as a frame, and their cells as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from statistics import stdev
from typing import Any

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import MEAN, Measure, average, drop_disturbed, drop_failed
from lazybench.analysis.console import texts
from lazybench.analysis.grouping import Block, Row, covering_most, with_difference
from lazybench.analysis.intervals import Estimate
from lazybench.analysis.labels import METHODS, is_calibrated, method_title, title_of
from lazybench.report import paper
from lazybench.report.caveats import is_measured

NONE = "—"


@dataclass(frozen=True)
class Spec:
    """The measures and rows of a table."""

    name: str  # stem of its files
    title: str
    measures: tuple[Measure, ...]  # in its CSV file
    as_paper: tuple[Measure, ...] = ()  # the paper's columns: methods that the paper lacks have a table of their own
    skip: tuple[str, ...] = ()  # methods without rows

    @property
    def columns(self) -> list[str]:
        """The columns of its CSV file."""
        return [*_ROW, *(f"{measure.key}{end}" for measure in self.measures for end in _ENDS)]


_ANSWERS = (averages.SCORE, averages.SCORE_DIFFERENCE, *averages.TTFT, averages.TTFT_SECONDS)
_GENERATION = (averages.COMPUTED, *averages.GENERATION, averages.EQUAL_LENGTH, *averages.DECODE_STEP)
_FIDELITY = (averages.TTFT[0], averages.GEOMETRIC_KL, averages.KL, averages.TOKENS, averages.ANSWERS)
_TABLE1, _TABLE2 = (averages.SCORE, averages.TTFT[0]), (averages.COMPUTED, averages.GENERATION[0])
SPECS = (
    Spec("fidelity", "Speed, and fidelity to the baseline", _FIDELITY, skip=("baseline",)),
    Spec("table1", "Table 1. Score and TTFT speedup", _ANSWERS, _TABLE1),
    Spec("table2", "Table 2. Prompt tokens computed and generation speedup", _GENERATION, _TABLE2),
    Spec("score_by_group", "Score by group of records", ()),  # `specs` has its measures
)
# How to read all tables, in Markdown.
READING = files("lazybench.report").joinpath("reading.md").read_text("utf-8")
_OF_BASELINE = [averages.TTFT[0].key, averages.GENERATION[0].key]  # 1 for itself
_LEAST_IS_BEST = ("geometric_kl", "prompt_computed")
_ROW = ["model", "data", "task", "method", "label", "datasets", "datasets_of_task", "records", "failed", "disturbed"]
_ENDS = ("", "_low", "_high", "_records", "_note", "_seed_deviation", "_paper")
_CELL = ["task", "method", "name"]  # what identifies a line of a table


def specs(blocks: Iterable[Block]) -> tuple[Spec, ...]:
    """Return `SPECS` with the groups of the blocks' datasets."""
    facts = [run.facts[name] for block in blocks for run in block.runs for name in run.datasets]
    groups = dict.fromkeys(group for dataset in facts for group in dataset.groups)
    return (*SPECS[:-1], replace(SPECS[-1], measures=tuple(map(averages.group_measure, groups))))


def numbers(block: Block) -> pd.DataFrame:
    """Measure every row of a block on the mean over the tasks, then on every task that it was run on.

    Without a run of the baseline, paired runs give its score.

    Returns:
        A line a task and row: `model`, `data`, `task`, `method`, `label`; `datasets` of `datasets_of_task`; the numbers
        of `records`, `failed` and `disturbed`. By each measure's key: its value; `_low` and `_high`, its interval;
        `_records`, their number; `_note`, for a missing value the reason; for some measures `_seed_deviation`, and
        `_paper`, the number printed there. Not in CSV files: `title`, the task's; `name`, the row's; `setting`, the
        part of the label after the method's title; `missing`, why there are no numbers.
    """
    tasks = block.tasks()
    # Without datasets that belong to no task.
    averaged = {task: names for task, names in block.tasks_compared().items() if names != [task]}
    sections = {MEAN: averaged} if len(averaged) > 1 else {}
    sections |= {task: {task: names} for task, names in tasks.items()}
    every = [*(measure for spec in specs([block]) for measure in spec.measures), averages.BASELINE_SCORE]
    measures, lines = {measure.key: measure for measure in every}, []
    for section, members in sections.items():
        title = "Macro-average" if section == MEAN else title_of(section, "task")
        rows = [_line(block, row, section, members, measures) | {"title": title} for row in block.compared]
        lines += [*_paired_baseline(rows, measures), *rows]
    frame = pd.DataFrame(lines).query("datasets > 0")
    return frame.astype({f"{key}{end}": float for key in measures for end in ("", "_low", "_high")})


def _paired_baseline(lines: Sequence[Mapping[str, Any]], measures: Mapping[str, Measure]) -> list[dict[str, Any]]:
    """Return the baseline's line of a section if only paired runs have its score: from the run with most records."""
    paired = [line for line in lines if pd.notna(line["baseline_score"])]
    if not paired or any(line["method"] == "baseline" and line["datasets"] for line in lines):
        return []
    line = max(paired, key=lambda line: line["baseline_score_records"])
    absent = {f"{key}_note": measure.absent for key, measure in measures.items()}
    counts = {"records": line["baseline_score_records"], "failed": 0, "disturbed": 0}
    score = {f"score{end}": line[f"baseline_score{end}"] for end in ("", "_low", "_high", "_records", "_note")}
    names = {"method": "baseline", "label": "baseline", "name": paper.NAMES["baseline"], "setting": "", "missing": ""}
    return [{key: line[key] for key in (*_ROW, "title", "conditions")} | absent | counts | names | score]


def _line(
    block: Block, row: Row, section: str, tasks: Mapping[str, Sequence[str]], measures: Mapping[str, Measure]
) -> dict[str, Any]:
    """Measure a row on tasks, which are given with their datasets."""
    records, datasets, missing = row.select(tasks)
    complete = with_difference(drop_failed(records), row, block)
    num_datasets = len(datasets), sum(map(len, tasks.values()))
    num_records = len(records), len(records) - len(complete), len(records) - len(drop_disturbed(records))
    values = (block.model, block.data, section, row.method, row.label, *num_datasets, *num_records)
    line: dict[str, Any] = dict(zip(_ROW, values, strict=True))
    for key, measure in measures.items():
        result = Estimate(note=missing) if missing else average(complete, measure)
        line |= result.columns(key) | {f"{key}_records": result.records, f"{key}_note": result.note}
        if measure.by_seed:
            line[f"{key}_seed_deviation"] = stdev(result.seeds) if result.seeds else None
    if not missing and block.floors.issuperset(datasets):
        line["score_note"] = "floor"
    printed = paper.printed(row, section, datasets)
    line |= {f"{measure.key}_paper": printed.get(measure.key, "") for measure in (*_TABLE1, *_TABLE2)}
    own_title, bare = method_title(row.runs[0]), row.label_without_conditions
    # Conditions tell rows of one setting apart; elsewhere they stand in the note.
    is_alone = [other.label_without_conditions for other in block.compared].count(bare) == 1
    setting = (bare if is_alone else row.label).removeprefix(own_title).strip()
    name = paper.NAMES.get(row.method, own_title)
    # A calibrated row's name has its speedup in any case.
    others = [other for other in block.compared if other is not row and not is_calibrated(other.runs[0])]
    is_one_of_several = not is_alone or any(other.method == row.method for other in others)
    if setting and (is_one_of_several or is_calibrated(row.runs[0])):
        name += f", {setting.removeprefix('calibrated for ')}"
    return line | {"name": name, "setting": setting, "missing": missing, "conditions": row.conditions}


def select(spec: Spec, blocks: Sequence[Block], lines: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of `numbers` that a table of blocks shows; means over tasks without any value are left out."""
    lines = lines[lines["model"].isin([block.model for block in blocks]) & (lines["data"] == blocks[0].data)]
    if not any(is_measured(measure, lines) for measure in spec.measures):
        return lines.head(0)
    bare = (lines["task"] == MEAN) & lines[[measure.key for measure in spec.measures]].isna().all(axis=1)
    return lines[~lines["method"].isin(spec.skip) & ~bare]


def split(spec: Spec, lines: pd.DataFrame) -> list[tuple[str, Sequence[Measure], pd.DataFrame]]:
    """Return title, measures and lines of a table, and of a second one of other methods than the paper's."""
    if not spec.as_paper:
        return [(spec.title, spec.measures, lines)]
    tables, others = [], {*lines["method"]} - {*METHODS}
    if not others or {*lines["method"]} & {*METHODS[1:]}:
        tables.append((spec.title, spec.as_paper, lines[lines["method"].isin(METHODS)]))
    if others:
        rows = lines[lines["method"].isin([*others, "baseline", "lazyllm"])]
        tables.append((f"{spec.title}. Other methods", (*spec.as_paper, averages.GEOMETRIC_KL), rows))
    return tables


def shown(measures: Sequence[Measure], lines: pd.DataFrame, beside_paper: bool) -> pd.DataFrame:
    """Format a table: `Task` and `Method` below an empty title, and measures below each model's.

    Rows without any number are left out, and the mean of the tasks is last. The best of a task is in asterisks if its
    interval excludes the second best, among rows of one condition and number of datasets.
    """
    lines = lines.copy()
    lines.loc[(lines["method"] == "baseline") & lines["score"].notna(), _OF_BASELINE] = 1.0
    valued = lines[lines[[measure.key for measure in measures]].notna().any(axis=1)]
    titles = dict(zip(valued["task"], valued["title"], strict=True))
    rows = [*dict.fromkeys(zip(valued["method"], valued["name"], strict=True))]
    rows.sort(key=lambda row: METHODS.index(row[0]) if row[0] in METHODS else len(METHODS))
    tasks = sorted(titles, key=MEAN.__eq__)
    index = pd.MultiIndex.from_tuples([(task, *row) for task in tasks for row in rows], names=_CELL)
    cells = {("", "Task"): [titles[task] for task, *_ in index], ("", "Method"): [name for *_, name in index]}
    for model, own in lines.groupby("model", sort=False):
        for measure in measures:
            if is_measured(measure, own):
                cells[title_of(model, "model"), measure.title] = _cells(own.set_index(_CELL).reindex(index), measure)
    repeated = index.droplevel("name").duplicated()
    for measure in measures if beside_paper else ():
        printed = [paper.numbers(paper.MODEL, task, method).get(measure.key) for task, method, _ in index]
        if any(printed):
            pairs = zip(printed, repeated, strict=True)
            cells[paper.TITLE, measure.title] = [NONE if repeats or not text else text for text, repeats in pairs]
    return pd.DataFrame(cells)


def _cells(lines: pd.DataFrame, measure: Measure) -> list[str]:
    """Format a measure of a model's lines, which have `_CELL` as index."""
    key, sign = measure.key, -1 if measure.key in _LEAST_IS_BEST else 1
    cells = lines[key].map(f"{{:.{measure.digits}f}}".format, na_action="ignore").astype(object).fillna(NONE)
    complete = covering_most(lines)
    if complete["conditions"].nunique() > 1:
        return cells.tolist()
    for _, task in complete.drop("baseline", level="method", errors="ignore").groupby(level="task"):
        ranked = (sign * task[key]).nlargest(2)
        end = task[f"{key}_low" if sign > 0 else f"{key}_high"]
        if len(ranked) == 2 and sign * end[ranked.index[0]] > ranked.iloc[1]:
            cells[ranked.index[0]] = f"**{cells[ranked.index[0]]}**"
    return cells.tolist()


def intervals(block: Block, lines: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each value of a block's `numbers`, with its interval and the number of its records."""
    ends = {"": "value", "_low": "low", "_high": "high", "_records": "records", "_seed_deviation": "seed_deviation"}
    parts = []
    measures = {measure.key: measure for spec in specs([block]) for measure in spec.measures}
    for key, measure in measures.items():
        values = lines.drop(columns="records").rename(columns={f"{key}{end}": name for end, name in ends.items()})
        parts.append(values.assign(measure=measure.title).dropna(subset="value"))
    return pd.concat(parts).reindex(columns=[*_ROW[:5], "measure", "title", "name", *ends.values()])


_PAIRED = (
    ("TTFT speedup, first (×)", "first_ttft_speedup", "{:.2f}"),
    ("TTFT speedup, second (×)", "second_ttft_speedup", "{:.2f}"),
    ("Records", "records", "{}"),
    ("KL ratio", "kl_ratio", "{:.2f}"),
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
