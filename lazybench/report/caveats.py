"""What a reader of one block's numbers must know: warnings before they compare, and notes below the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product
from typing import TypeVar

from lazybench.analysis.averages import ran
from lazybench.analysis.blocks import Block, Row, agree
from lazybench.analysis.labels import is_calibrated, provenance

T = TypeVar("T")


def warnings(block: Block) -> list[str]:
    """One sentence each, for one model and data: what makes a comparison wrong."""
    about = (_calibrated, _conditions, _commits, _overlaps, _record_sets, _contents, _unmodified)
    return [f"{block.title}: {text}" for of in about for text in of(block)]


def _calibrated(block: Block) -> list[str]:
    return [
        f"{row.label}: its schedule was chosen on these records, so its numbers flatter it"
        for row in block.rows
        if any(run.calibrated_on for run in row.runs)
    ]


def _conditions(block: Block) -> list[str]:
    return [
        f"the runs differ in {key} ({', '.join(values)}): kept as separate rows, not to be compared with each other"
        for key, values in block.differing.items()
    ]


def _commits(block: Block) -> list[str]:
    """Rows whose code may differ: from several commits, or from one with uncommitted changes."""
    found = _labels((commit_text(run.environment.get("commit")), row) for row in block.rows for run in row.runs)
    if len(found) < 2 and not any("uncommitted" in commit for commit in found):
        return []
    return [f"rows from different commits, or from none, whose code may differ: {_told(found)}"]


def commit_text(commit: str | None) -> str:
    """A commit for people; `+` behind it says that there were changes beyond it."""
    text = str(commit or "no commit")
    return text.replace("+", " with uncommitted changes")


def _overlaps(block: Block) -> list[str]:
    return [
        f"more than one run of {row.label.rpartition(' #')[0]} covers the same dataset: "
        f"{row.label.rpartition('#')[2]} is a row of its own"
        for row in block.rows
        if row.label.endswith(f"#{row.runs[0].digest}")
    ]


def _record_sets(block: Block) -> list[str]:
    """Finished runs that met different records of a dataset: what `data.limit` does not explain."""
    met: dict[str, list[tuple[frozenset[str], Row]]] = {}
    for row in block.rows:
        for run in row.runs:
            for dataset, records in run.records.groupby("dataset") if run.finished else ():
                met.setdefault(str(dataset), []).append((frozenset(records["_id"]), row))
    differing: dict[str, list[str]] = {}
    for dataset, sets in met.items():
        if len(labels := _labels(sets)) > 1:
            who = "; ".join(f"{len(ids)} a dataset in {', '.join(dict.fromkeys(of))}" for ids, of in labels.items())
            differing.setdefault(who, []).append(dataset)
    return [f"the runs met different records of {', '.join(names)}: {who}" for who, names in differing.items()]


def _contents(block: Block) -> list[str]:
    """Runs of one task under the same conditions whose records have the same names but not the same content."""
    met: dict[tuple[str, str], list[tuple[str, Row]]] = {}
    for row in block.rows:
        for run in row.runs:
            under = run.settings["task"], row.conditions
            met.setdefault(under, []).append((str(run.settings.get("records"))[:12], row))
    found = {task: _labels(contents) for (task, _), contents in met.items()}
    return [
        f"the content of the records of {task} differs: {_told(labels)}"
        for task, labels in found.items()
        if len(labels) > 1
    ]


def _unmodified(block: Block) -> list[str]:
    """Runs whose unmodified model gave other answers than the baseline run on the same records."""
    texts = []
    baselines = [row for row in block.rows if row.method == "baseline"]
    others = [row for row in block.rows if row.method != "baseline"]
    for row, baseline in product(others, baselines):
        if agree(baseline.runs[0], row.runs[0]):
            given, met = _answers(baseline, "prediction_digest"), _answers(row, "baseline_prediction_digest")
            shared = sorted(met.keys() & given.keys())
            if different := Counter(key[0] for key in shared if met[key] != given[key]):
                texts.append(
                    f"the unmodified model's answers beside {row.label} differ from those of {baseline.label} on "
                    f"{sum(different.values())} of {len(shared)} records "
                    f"({', '.join(f'{dataset} {count}' for dataset, count in different.items())})"
                )
    return texts


def _answers(row: Row, column: str) -> dict[tuple[str, str], str]:
    records = ran(row.records).set_index(["dataset", "_id"])[column]
    return records[records != ""].to_dict()


def _labels(found: Iterable[tuple[T, Row]]) -> dict[T, list[str]]:
    """The labels of the rows with each of the values."""
    labels: dict[T, list[str]] = {}
    for value, row in found:
        labels.setdefault(value, []).append(row.label)
    return labels


def _told(labels: dict[str, list[str]]) -> str:
    return "; ".join(f"{value} ({', '.join(dict.fromkeys(of))})" for value, of in labels.items())


def notes(block: Block) -> list[str]:
    """One sentence each: where schedules come from, what shows nothing, and what was disturbed."""
    return [*_schedules(block), *_floors(block), *_timed(block), *_disturbed(block)]


def floors(block: Block) -> frozenset[str]:
    """Datasets on which every method scores 0 on every record: they tell no method from another."""
    best = ran(block.records).groupby("dataset")["score"].max()
    return frozenset(best[best == 0].index)


def _schedules(block: Block) -> list[str]:
    """Where calibrated schedules come from."""
    calibrated = [(row, run) for row in block.rows for run in row.runs if is_calibrated(run)]
    return list(dict.fromkeys(f"{row.label}: {provenance(run.settings['method'])}" for row, run in calibrated))


def _floors(block: Block) -> list[str]:
    found = ", ".join(sorted(floors(block)))
    return [f"floor: every method scores 0 on every record of {found}, so their scores show nothing"] if found else []


def _timed(block: Block) -> list[str]:
    """Rows whose times are of a part of their records."""
    every = [((run.settings.get("timing") or {}).get("every", 1), row) for row in block.rows for run in row.runs]
    taken = "times, and identical tokens and answers, are of one record in"
    found = _labels(of for of in every if of[0] != 1)
    return [f"{taken} {part}, all else is of all: {', '.join(dict.fromkeys(of))}" for part, of in found.items()]


def _disturbed(block: Block) -> list[str]:
    """How many passes were taken again, and how many records stayed disturbed all the same."""
    by_row = block.records.groupby("label", sort=False)
    again = by_row["retaken"].sum()
    stayed = by_row["disturbed"].agg(lambda of: (of == 1).sum())
    if not again.any():
        return []
    listed = [", ".join(f"{label} {count:g}" for label, count in of[of > 0].items()) for of in (again, stayed)]
    return [
        f"passes taken again because other work disturbed them: {again.sum():g} ({listed[0]}); records that stayed "
        f"disturbed: {listed[1] or 'none'}"
    ]
