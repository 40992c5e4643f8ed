"""What a reader must know before comparing two numbers of a report."""

from __future__ import annotations

from collections import Counter

from lazybench.report.blocks import Block, Row
from lazybench.report.conditions import agree
from lazybench.report.run_data import Run


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
    """Rows whose code may differ: of several commits, or of one with changes that were not committed."""
    met: dict[str, list[str]] = {}
    for row in block.rows:
        for commit in dict.fromkeys(str(run.environment.get("commit")) for run in row.runs):
            met.setdefault(commit, []).append(row.label)
    if len(met) < 2 and not any(commit.endswith("+") for commit in met):
        return []
    found = "; ".join(f"{_commit(commit)} ({', '.join(labels)})" for commit, labels in met.items())
    if len(met) == 1:
        return [f"rows from commit {found}: no commit has their code"]
    return [f"rows from different commits, whose code may differ: {found}"]


def _commit(commit: str) -> str:
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
    met: dict[str, dict[frozenset[str], list[str]]] = {}
    for row in block.rows:
        for run in row.runs:
            if run.finished:
                for dataset, records in run.records.groupby("dataset"):
                    met.setdefault(str(dataset), {}).setdefault(frozenset(records["_id"]), []).append(row.label)
    differing: dict[str, list[str]] = {}
    for dataset, sets in met.items():
        if len(sets) > 1:
            who = "; ".join(f"{len(ids)} a dataset in {', '.join(labels)}" for ids, labels in sets.items())
            differing.setdefault(who, []).append(dataset)
    return [f"the runs met different records of {', '.join(names)}: {who}" for who, names in differing.items()]


def _contents(block: Block) -> list[str]:
    """Runs of one task under the same conditions whose records have the same names but not the same content."""
    met: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in block.rows:
        for run in row.runs:
            fingerprint = str(run.settings.get("records"))
            met.setdefault((run.settings["task"], row.conditions), {}).setdefault(fingerprint, []).append(row.label)
    return [
        f"the content of the records of {task} differs: "
        + "; ".join(f"{fingerprint[:12]} in {', '.join(labels)}" for fingerprint, labels in found.items())
        for (task, _), found in met.items()
        if len(found) > 1
    ]


def _unmodified(block: Block) -> list[str]:
    """Runs whose unmodified model answered otherwise than the baseline run did on the same records."""
    baselines = [row for row in block.rows if row.method == "baseline"]
    texts = []
    for row in block.rows:
        if row.method == "baseline":
            continue
        for baseline in baselines:
            if agree(baseline.runs[0], row.runs[0]):
                different, shared = _differences(row, baseline)
                if different:
                    texts.append(
                        f"the unmodified model's answers beside {row.label} differ from those of {baseline.label} on "
                        f"{sum(different.values())} of {shared} records "
                        f"({', '.join(f'{dataset} {count}' for dataset, count in different.items())})"
                    )
    return texts


def _differences(row: Row, baseline: Row) -> tuple[Counter[str], int]:
    answers = {key: digest for run in baseline.runs for key, digest in _answers(run, "prediction_digest").items()}
    met = {key: digest for run in row.runs for key, digest in _answers(run, "baseline_prediction_digest").items()}
    shared = met.keys() & answers.keys()
    return Counter(key[0] for key in sorted(shared) if met[key] != answers[key]), len(shared)


def _answers(run: Run, column: str) -> dict[tuple[str, str], str]:
    given = run.records[(run.records[column] != "") & (run.records["error"] == "")]
    return {(row["dataset"], row["_id"]): row[column] for row in given.to_dict("records")}
