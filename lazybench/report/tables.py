"""The tables: their measures and rows, the numbers as a frame, and the same as text for people."""

from dataclasses import dataclass
from importlib.resources import files
from statistics import stdev
from typing import Any

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import MEAN, Measure, measured, ran, undisturbed
from lazybench.analysis.console import texts
from lazybench.analysis.grouping import KEY, NO_RUN, Block, Row, agree
from lazybench.analysis.intervals import Estimate
from lazybench.analysis.labels import METHODS, task_title, title_of
from lazybench.data.facts import tasks
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
    skip: tuple[str, ...] = ()  # methods it has no rows for
    by_length: bool = False  # only of data whose scores are shown by the records' length
    by_dataset: bool = False  # of the baseline alone, by dataset, where LongBench has published scores of the model


_ANSWERS = (averages.SCORE, averages.SCORE_DIFFERENCE, *averages.TTFT)
_GENERATION = (averages.COMPUTED, *averages.GENERATION, averages.EQUAL_LENGTH, *averages.DECODE_STEP)
_KL = (averages.GEOMETRIC_KL, averages.KL, averages.FIRST_TOKEN_KL)
_FIDELITY = (averages.TTFT[0], *_KL, averages.TOKENS, averages.ANSWERS)
SPECS = (
    Spec("fidelity", "Speed, and fidelity to the baseline", _FIDELITY, skip=("baseline",)),
    Spec("table1", "Table 1. Score and TTFT speedup", _ANSWERS, ("score", "ttft_speedup")),
    Spec("table2", "Table 2. Tokens computed and generation", _GENERATION, ("prompt_computed", "generation_speedup")),
    Spec("times", "Seconds to the first token", averages.TTFT_SECONDS),
    Spec("longbench", "The baseline beside LongBench's own", (averages.SCORE,), ("score",), by_dataset=True),
    Spec("score_by_length", "Score by length", averages.SCORE_BY_LENGTH, by_length=True),
)
# How to read all tables, in Markdown.
READING = files("lazybench.report").joinpath("reading.md").read_text("utf-8")
MEASURES = {measure.key: measure for spec in SPECS for measure in spec.measures}
_ROW = ["model", "data", "task", "method", "label", "datasets", "datasets_of_task", "records", "failed", "disturbed"]
_ENDS = ("", "_low", "_high", "_records", "_missing", "_note", "_seed_deviation", "_paper")


def numbers(block: Block) -> pd.DataFrame:
    """Measure every row of a block on the mean over the tasks, then on every task that it was run on.

    After the baseline, rows are sorted by the speedup of their first token, rounded to an integer.

    Returns:
        A line a task and row: `model`, `data`, `task`, `method`, `label`; `datasets` of `datasets_of_task`, `records`,
        `failed`, `disturbed`; for each measure its value under its key, and `_low` and `_high`, `_records` that it is
        measured on, `_missing`, why there is none, and `_note`; where they apply `_seed_deviation`, and `_paper` as
        printed there; `title`, the task's for people; and `by_dataset`, whether it is about one dataset of a task.
    """
    averaged, at_floor = [*block.tasks_averaged()], floors(block)
    datasets = {name: [name] for name in paper.published(block)}
    members = block.tasks_run() | datasets
    sections = {MEAN: averaged} if len(averaged) > 1 else {}
    sections |= {name: [name] for name in members}
    specs = [spec for spec in SPECS if block.by_length or not spec.by_length]
    rows = sorted(block.compared, key=lambda row: _speed(row, members))
    lines = []
    for section, names in sections.items():
        for row in rows:
            selection = row.select({task: members[task] for task in names})
            if selection.missing == NO_RUN or (section in datasets and row.method != "baseline"):
                continue
            records = selection.records
            complete = _with_difference(ran(records), row, block)
            num_datasets = len(selection.datasets), sum(len(members[task]) for task in names)
            num_records = len(records), len(records) - len(complete), len(records) - len(undisturbed(records))
            values = (block.model, block.data, section, row.method, row.label, *num_datasets, *num_records)
            line: dict[str, Any] = dict(zip(_ROW, values, strict=True))
            for spec in specs:
                for measure in spec.measures:
                    missing = Estimate(missing=selection.missing)
                    result = missing if selection.missing else measured(complete, measure)
                    line |= result.columns(measure.key)
                    line |= {f"{measure.key}_{name}": getattr(result, name) for name in ("records", "missing", "note")}
                    if measure.by_seed:
                        line[f"{measure.key}_seed_deviation"] = stdev(result.seeds) if result.seeds else None
                line |= {f"{key}_paper": paper.value(row, section, selection.datasets, key) for key in spec.in_paper}
            line["by_dataset"] = section in datasets
            line["title"] = f"Mean of the {len(averaged)} tasks" if section == MEAN else task_title(section)
            if selection.datasets and at_floor.issuperset(selection.datasets):
                line["score_note"] = "floor"
            lines.append(line)
    keys = [f"{measure.key}{end}" for spec in specs for measure in spec.measures for end in ("", "_low", "_high")]
    return pd.DataFrame(lines).astype(dict.fromkeys(keys, float))


def _speed(row: Row, tasks: dict[str, list[str]]) -> tuple[bool, int]:
    return row.method != "baseline", round(row.measure(tasks, averages.TTFT[0]).value or 0)


def _with_difference(records: pd.DataFrame, row: Row, block: Block) -> pd.DataFrame:
    """Add `score_difference`, to the baseline's score of the same record under the same conditions."""
    baselines = [other for other in block.baselines if all(agree(one, run) for one in other.runs for run in row.runs)]
    known = pd.concat([records.head(0), *(ran(baseline.records) for baseline in baselines)]).drop_duplicates(KEY)
    scores = records[[*KEY, "score"]].merge(known[[*KEY, "score"]], "left", on=KEY, suffixes=("", "_baseline"))
    return records.assign(score_difference=(scores["score"] - scores["score_baseline"]).to_numpy(float))


def select(spec: Spec, lines: pd.DataFrame) -> pd.DataFrame:
    """Return a table's part of `numbers`, without means that lack tasks, whose own lines show as much."""
    lines = lines[lines["by_dataset"] == spec.by_dataset]
    if not any(measure.key in lines and is_taken(measure, lines) for measure in spec.measures):
        return lines.head(0)
    columns = [f"{measure.key}{end}" for measure in spec.measures for end in _ENDS]
    bare = (lines["task"] == MEAN) & lines[[measure.key for measure in spec.measures]].isna().all(axis=1)
    shown = [*_ROW, "title", *(column for column in columns if column in lines)]
    return lines.loc[~lines["method"].isin(spec.skip) & ~bare, shown]


def is_taken(measure: Measure, lines: pd.DataFrame) -> bool:
    """Return whether any run that could give a number took this measure, so that it needs a column."""
    return bool(lines[measure.key].notna().any() or not (lines[f"{measure.key}_missing"] == measure.absent).any())


def shown(spec: Spec, block: Block, lines: pd.DataFrame) -> pd.DataFrame:
    """Return the table for people: `Task`, `Method`, a column a measure that was taken, and `Records`.

    Its cells are lists of texts: a number, its deviation over seeds, its interval and its note; or a dash and why there
    is no number.
    """
    cells: dict[str, Any] = {"Task": lines["title"], "Method": lines["label"]}
    for measure in spec.measures:
        if is_taken(measure, lines):
            cells[measure.title] = lines.apply(_cell, axis=1, measure=measure)
        if measure.key in spec.in_paper and lines[f"{measure.key}_paper"].any():
            heading = f"{measure.title.removesuffix(' (×)')}, {paper.heading(block, spec.by_dataset)}"
            cells[heading] = lines[f"{measure.key}_paper"]
    cells["Records"] = lines.apply(_records, axis=1)
    return pd.DataFrame(cells)


def _cell(line: pd.Series, measure: Measure) -> list[str]:
    value, form = line[measure.key], f"{{:.{measure.digits}f}}".format
    if pd.isna(value):
        return [NONE, f"({line[f'{measure.key}_missing']})"]
    ends = ("seed_deviation", "low", "high", "note")
    deviation, low, high, note = (line.get(f"{measure.key}_{end}") for end in ends)
    parts = [f"± {form(deviation)}"] if pd.notna(deviation) else []
    parts += [f"[{form(low)}, {form(high)}]"] if pd.notna(low) else []
    return [form(value), *parts, *([f"({note})"] if note else [])]


def _records(line: pd.Series) -> list[str]:
    complete = line["datasets"] == line["datasets_of_task"]
    parts = [] if complete else [f"{line['datasets']} of {line['datasets_of_task']} datasets"]
    parts += [f"{line[key]} {key}" for key in ("failed", "disturbed") if line[key]]
    return [str(line["records"]), *([f"({', '.join(parts)})"] if parts else [])]


def lacking(spec: Spec, block: Block, lines: pd.DataFrame) -> str:
    """Describe what was not measured, and which of the paper's methods and tasks have no run, in one line."""
    reasons: dict[str, list[str]] = {}
    for measure in spec.measures:
        if not is_taken(measure, lines):
            reasons.setdefault(measure.absent, []).append(measure.title)
    sources = {run.settings["data"].get("source") for run in block.runs}
    if "longbench" in sources and block.is_longbench and not spec.by_dataset:
        run = {row.method for row in block.rows} | set(spec.skip)
        reasons["no runs"] = [title_of(method) for method in METHODS if method not in run]
        reasons["no runs"] += [task_title(task) for task in tasks() if task not in block.tasks_run()]
    text = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items() if names)
    return text[:1].upper() + text[1:]


_PAIRED = (
    ("TTFT speedup, first (×)", "first_ttft_speedup", "{:.2f}"),
    ("TTFT speedup, second (×)", "second_ttft_speedup", "{:.2f}"),
    ("Records", "records", "{}"),
    ("Mean KL, first (nats)", "first_kl", "{:.4f}"),
    ("Mean KL, second (nats)", "second_kl", "{:.4f}"),
    ("KL ratio", "kl_ratio", "{:.2f}"),
    ("Records with KL", "kl_records", "{}"),
    ("Lower KL under first", "records_first_lower_kl", "{}"),
    ("Equal KL", "records_equal_kl", "{}"),
    ("p of KL (Holm)", "kl_p_holm", "{:.2g}"),
    ("Score difference", "score_difference", "{:+.2f}"),
)


def pairs_shown(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the paired tests for people: `First`, `Second` and their numbers as text, without empty columns."""
    columns = {title: (key, form) for title, key, form in _PAIRED if (pairs[key].fillna(0) != 0).any()}
    cells = {title: texts(pairs, key, form, NONE) for title, (key, form) in columns.items()}
    table = pd.DataFrame(cells).map(lambda text: text.replace("-", "−"))
    table.insert(0, "First", pairs["first"])
    table.insert(1, "Second", pairs["second"])
    return table
