"""What a reader of one block's numbers must know: warnings before they compare, and notes below the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import pandas as pd

from lazybench.analysis.averages import ran, undisturbed
from lazybench.analysis.blocks import Block, Row, agree
from lazybench.analysis.labels import is_calibrated, provenance
from lazybench.analysis.run_data import TIMES, Run

T = TypeVar("T")


def warnings(block: Block) -> list[str]:
    """One sentence each, for one model and data."""
    where = f"{block.model} on {block.data}"
    about = (_calibrated, _conditions, _commits, _overlaps, _record_sets, _contents, _unmodified)
    texts = [text for of in about for text in of(block)]
    return [f"{where}: {text}" for text in texts]


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
    met = _labels((str(run.environment.get("commit")), row) for row in block.rows for run in row.runs)
    if len(met) < 2 and not any(commit.endswith("+") for commit in met):
        return []
    found = "; ".join(f"{commit_text(commit)} ({', '.join(dict.fromkeys(labels))})" for commit, labels in met.items())
    if len(met) == 1:
        return [f"rows from commit {found}: no commit has their code"]
    return [f"rows from different commits, whose code may differ: {found}"]


def commit_text(commit: str) -> str:
    """A commit for people; `+` behind it says that there were changes beyond it."""
    if commit.endswith("+"):
        return f"{commit.removesuffix('+')} with uncommitted changes"
    return "no commit" if commit == "None" else commit


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
        who = "; ".join(f"{len(ids)} a dataset in {', '.join(labels)}" for ids, labels in _labels(sets).items())
        if len(_labels(sets)) > 1:
            differing.setdefault(who, []).append(dataset)
    return [f"the runs met different records of {', '.join(names)}: {who}" for who, names in differing.items()]


def _contents(block: Block) -> list[str]:
    """Runs of one task under the same conditions whose records have the same names but not the same content."""
    met: dict[tuple[str, str], list[tuple[str, Row]]] = {}
    for row in block.rows:
        for run in row.runs:
            under = run.settings["task"], row.conditions
            met.setdefault(under, []).append((str(run.settings.get("records"))[:12], row))
    return [
        f"the content of the records of {task} differs: "
        + "; ".join(f"{fingerprint} in {', '.join(labels)}" for fingerprint, labels in _labels(contents).items())
        for (task, _), contents in met.items()
        if len(_labels(contents)) > 1
    ]


def _labels(found: Iterable[tuple[T, Row]]) -> dict[T, list[str]]:
    """The labels of the rows with each of the values."""
    labels: dict[T, list[str]] = {}
    for value, row in found:
        labels.setdefault(value, []).append(row.label)
    return labels


def _unmodified(block: Block) -> list[str]:
    """Runs whose unmodified model gave other answers than the baseline run on the same records."""
    baselines = [row for row in block.rows if row.method == "baseline"]
    texts = []
    for row in block.rows:
        for baseline in baselines if row.method != "baseline" else ():
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
    records = ran(_records(row.runs)).set_index(["dataset", "_id"])[column]
    return records[records != ""].to_dict()


def notes(block: Block) -> list[str]:
    """One sentence each: where schedules come from, what shows nothing, and what was disturbed."""
    return [*_schedules(block), *_floors(block), *_timed(block), *_disturbed(block), *_unknown(block)]


def floors(block: Block) -> frozenset[str]:
    """Datasets on which every method scores 0 on every record: they tell no method from another."""
    best = ran(_records(block.runs)).groupby("dataset")["score"].max()
    return frozenset(best[best == 0].index)


def _schedules(block: Block) -> list[str]:
    """Where calibrated schedules come from."""
    calibrated = [(row, run) for row in block.rows for run in row.runs if is_calibrated(run)]
    return list(dict.fromkeys(f"{row.label}: {provenance(run.settings['method'])}" for row, run in calibrated))


def _floors(block: Block) -> list[str]:
    found = floors(block)
    if not found:
        return []
    return [f"floor: every method scores 0 on every record of {', '.join(sorted(found))}, so their scores show nothing"]


def _timed(block: Block) -> list[str]:
    """Rows whose times are of a part of their records."""
    found: dict[int, list[str]] = {}
    for row in block.rows:
        for every in {(run.settings.get("timing") or {}).get("every", 1) for run in row.runs} - {1}:
            found.setdefault(every, []).append(row.label)
    taken = "times, and identical tokens and answers, are of one record in"
    return [f"{taken} {every}, all else is of all: {', '.join(of)}" for every, of in found.items()]


def _disturbed(block: Block) -> list[str]:
    """How many passes were taken again, and which rows have records that stayed disturbed."""
    of_rows = {row.label: _records(row.runs) for row in block.rows}
    retaken = {label: int(records["retaken"].sum()) for label, records in of_rows.items()}
    stayed = {label: len(records) - len(undisturbed(records)) for label, records in of_rows.items()}
    if not any(retaken.values()):
        return []
    again = ", ".join(f"{label} {count}" for label, count in retaken.items() if count)
    said = f"passes taken again because other work disturbed them: {sum(retaken.values())} ({again})"
    left = ", ".join(f"{label} {count}" for label, count in stayed.items() if count)
    return [f"{said}; records that stayed disturbed: {left or 'none'}"]


def _unknown(block: Block) -> list[str]:
    """Rows timed on a CPU whose records lack the CPU times, which show disturbed passes."""
    rows = [row.label for row in block.rows if any(map(_lacks_cpu_times, row.runs))]
    return [f"no CPU times were recorded, so disturbed passes cannot be detected: {', '.join(rows)}"] if rows else []


def _lacks_cpu_times(run: Run) -> bool:
    timed = run.records[list(TIMES)].notna().any(axis=1)
    on_cpu = run.environment.get("device_kind") == "cpu"
    return bool(on_cpu and (timed & run.records["generation_cpu_s"].isna()).any())


def _records(runs: Iterable[Run]) -> pd.DataFrame:
    return pd.concat([run.records for run in runs])
