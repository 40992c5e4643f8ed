"""The tables: which measures and rows, their numbers as one frame, and what is said below them."""

from dataclasses import dataclass
from importlib.resources import files
from statistics import stdev
from typing import Any

import pandas as pd

from lazybench.analysis import averages
from lazybench.analysis.averages import MEAN, NO_RUN, Cell, Measure, measured, part_of, ran, together, undisturbed
from lazybench.analysis.blocks import Block, Row, agree
from lazybench.analysis.console import texts
from lazybench.analysis.intervals import columns
from lazybench.analysis.labels import METHODS, task_title, title_of
from lazybench.data.facts import tasks
from lazybench.report import paper
from lazybench.report.caveats import floors

NONE = "—"


@dataclass(frozen=True)
class Spec:
    """What a table shows."""

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
# What all tables' numbers are, in Markdown.
READING = files("lazybench.report").joinpath("reading.md").read_text("utf-8")
MEASURES = {of.key: of for spec in SPECS for of in spec.measures}
_ABOUT = ["model", "data", "task", "method", "label", "datasets", "datasets_of_task", "records", "failed", "disturbed"]


def numbers(block: Block) -> pd.DataFrame:
    """Every row of a block measured on the mean over the tasks, then on every task that it was run on.

    After the baseline, rows whose first token is about as fast, to whole times, stand together.

    Returns:
        A line a task and row: `model`, `data`, `task`, `method`, `label`; `datasets` of `datasets_of_task`, `records`,
        `failed`, `disturbed`; for each measure its number under its key, and `_low` and `_high`, `_records` behind it,
        `_missing`, why there is none, and `_note`; where they apply `_seed_deviation`, and `_paper` as printed there;
        `title`, the task's for people; and `by_dataset`, whether it is about one dataset of a task.
    """
    of_tasks, at_floor, averaged = block.tasks_run(), floors(block), [*block.averaged()]
    datasets = {name: [name] for name in paper.published(block)}
    sections = {MEAN: averaged} if len(averaged) > 1 else {}
    sections |= {name: [name] for name in (*of_tasks, *datasets)}
    specs = [spec for spec in SPECS if block.by_length or not spec.by_length]
    every = of_tasks | datasets
    rows = sorted(block.compared, key=lambda row: _speed(row, every))
    lines = []
    for section, names in sections.items():
        for row in rows:
            whole = together({task: part_of(row, every[task]) for task in names})
            if whole.reason == NO_RUN or (section in datasets and row.method != "baseline"):
                continue
            met, done = whole.records, _differing(ran(whole.records), row, block)
            about = [block.model, block.data, section, row.method, row.label, len(whole.there), whole.members]
            about += [len(met), len(met) - len(done), len(met) - len(undisturbed(met))]
            line = dict(zip(_ABOUT, about, strict=True))
            for spec in specs:
                for of in spec.measures:
                    line |= _columns(of, Cell(None, reason=whole.reason) if whole.reason else measured(done, of))
                line |= {f"{key}_paper": paper.value(row, section, whole.there, key) for key in spec.in_paper}
            line["by_dataset"] = section in datasets
            line["title"] = f"Mean of the {len(averaged)} tasks" if section == MEAN else task_title(section)
            if whole.there and at_floor.issuperset(whole.there):
                line["score_note"] = "floor"
            lines.append(line)
    keys = [f"{of.key}{end}" for spec in specs for of in spec.measures for end in ("", "_low", "_high")]
    return pd.DataFrame(lines).astype(dict.fromkeys(keys, float))


def _speed(row: Row, tasks: dict[str, list[str]]) -> tuple[bool, int]:
    found = averages.cell(row, tasks, averages.TTFT[0]).estimate
    return row.method != "baseline", round(found.value) if found else 0


def _differing(records: pd.DataFrame, row: Row, block: Block) -> pd.DataFrame:
    """The records with `score_difference`, to the baseline's score of the same record under the same conditions."""
    others = [of for of in block.rows if of.method == "baseline"]
    baselines = [of for of in others if all(agree(one, other) for one in of.runs for other in row.runs)]
    key = ["dataset", "_id"]
    known = pd.concat([records.head(0), *(ran(of.records) for of in baselines)]).drop_duplicates(key)
    scores = records[[*key, "score"]].merge(known[[*key, "score"]], "left", on=key, suffixes=("", "_baseline"))
    return records.assign(score_difference=(scores["score"] - scores["score_baseline"]).to_numpy(float))


def select(spec: Spec, lines: pd.DataFrame) -> pd.DataFrame:
    """What a table has of a block's `numbers`. A mean that lacks tasks tells no more than their own lines do."""
    lines = lines[lines["by_dataset"] == spec.by_dataset]
    if not any(of.key in lines and taken(of, lines) for of in spec.measures):
        return lines.head(0)
    chosen = [*_ABOUT, "title"]
    for of in spec.measures:
        ends = ["", "_low", "_high", "_records", "_missing", "_note", "_seed_deviation", "_paper"]
        chosen += [f"{of.key}{end}" for end in ends if f"{of.key}{end}" in lines]
    bare = (lines["task"] == MEAN) & lines[[of.key for of in spec.measures]].isna().all(axis=1)
    return lines.loc[~lines["method"].isin(spec.skip) & ~bare, chosen]


def _columns(of: Measure, found: Cell) -> dict[str, Any]:
    line: dict[str, Any] = columns(of.key, found.estimate)
    line |= {f"{of.key}_records": found.records, f"{of.key}_missing": found.reason, f"{of.key}_note": found.note}
    deviation = stdev(found.seeds) if found.seeds else None
    return line | ({f"{of.key}_seed_deviation": deviation} if of.by_seed else {})


def taken(of: Measure, lines: pd.DataFrame) -> bool:
    """Whether a measure was taken in any run that could give a number, so that it needs a column."""
    return bool(lines[of.key].notna().any() or not (lines[f"{of.key}_missing"] == of.absent).any())


def shown(spec: Spec, block: Block, lines: pd.DataFrame) -> pd.DataFrame:
    """The frame for people: `Task`, `Method`, and a column a measure that was taken; its cells are texts in parts.

    Parts are a number, its deviation over seeds, its interval and its note; or a dash and why there is no number.
    """
    cells: dict[str, Any] = {"Task": lines["title"], "Method": lines["label"]}
    for of in spec.measures:
        if taken(of, lines):
            cells[of.title] = lines.apply(_parts, axis=1, of=of)
        if of.key in spec.in_paper and lines[f"{of.key}_paper"].any():
            whose = paper.heading(block, spec.by_dataset)
            cells[f"{of.title.removesuffix(' (×)')}, {whose}"] = lines[f"{of.key}_paper"]
    cells["Records"] = lines.apply(_records, axis=1)
    return pd.DataFrame(cells)


def _parts(line: pd.Series, of: Measure) -> list[str]:
    value, form = line[of.key], f"{{:.{of.digits}f}}".format
    if pd.isna(value):
        return [NONE, f"({line[f'{of.key}_missing']})"]
    deviation, low, high, note = (line.get(f"{of.key}_{what}") for what in ("seed_deviation", "low", "high", "note"))
    said = [f"± {form(deviation)}"] if pd.notna(deviation) else []
    said += [f"[{form(low)}, {form(high)}]"] if pd.notna(low) else []
    return [form(value), *said, *([f"({note})"] if note else [])]


def _records(line: pd.Series) -> list[str]:
    whole = line["datasets"] == line["datasets_of_task"]
    said = [] if whole else [f"{line['datasets']} of {line['datasets_of_task']} datasets"]
    said += [f"{line[what]} {what}" for what in ("failed", "disturbed") if line[what]]
    return [str(line["records"]), *([f"({', '.join(said)})"] if said else [])]


def lacking(spec: Spec, block: Block, lines: pd.DataFrame) -> str:
    """What was not measured, and which of the paper's methods and tasks have no run, in one line; empty for none."""
    said: dict[str, list[str]] = {}
    for of in spec.measures:
        if not taken(of, lines):
            said.setdefault(of.absent, []).append(of.title)
    sources = {run.settings["data"].get("source") for run in block.runs}
    if "longbench" in sources and block.of_longbench and not spec.by_dataset:
        run = {row.method for row in block.rows} | set(spec.skip)
        said["no runs"] = [title_of(method) for method in METHODS if method not in run]
        said["no runs"] += [task_title(task) for task in tasks() if task not in block.tasks_run()]
    text = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in said.items() if names)
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
    """The paired tests for people: `First`, `Second` and their numbers as texts, without what was not measured."""
    there = [(title, key, form) for title, key, form in _PAIRED if (pairs[key].fillna(0) != 0).any()]
    cells = {title: [text.replace("-", "−") for text in texts(pairs, key, form, NONE)] for title, key, form in there}
    return pd.DataFrame({"First": pairs["first"], "Second": pairs["second"], **cells})
