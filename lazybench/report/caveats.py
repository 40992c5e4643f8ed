"""Warnings before numbers are compared, and notes below the tables."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from lazybench.analysis.averages import ran
from lazybench.analysis.grouping import KEY, Block, agree
from lazybench.analysis.labels import format_settings, is_calibrated, model_title, provenance, short


def warnings(block: Block) -> list[str]:
    """Return a sentence for each thing that makes a comparison within one model and data wrong."""
    parts = (_rows, _commits, _records, _baselines)
    return [f"{block.title}: {text}" for part in parts for text in part(block)]


def between_models(blocks: Iterable[Block]) -> list[str]:
    """Return a sentence where models' generation configs change answers in different ways; older runs do not say."""
    configs = [
        (format_settings(run.environment["generation_config"]) or "nothing", model_title(run.model))
        for block in blocks
        for run in block.runs
        if run.environment.get("generation_config") is not None
    ]
    text = _differences(configs)
    return [f"models' generation configs set different things, so their answers do not compare: {text}"] if text else []


def _differences(pairs: Iterable[tuple[str | frozenset[str], str]]) -> str:
    """List each value, a text or the ids of a dataset, with its rows' labels; empty where all have the same value."""
    labels: dict[str | frozenset[str], dict[str, None]] = {}
    for value, label in pairs:
        labels.setdefault(value, {})[label] = None
    texts = {value: short(value) if isinstance(value, str) else f"{len(value)} a dataset" for value in labels}
    return "; ".join(f"{texts[value]} ({', '.join(rows)})" for value, rows in labels.items()) if len(labels) > 1 else ""


def _rows(block: Block) -> Iterator[str]:
    """Warn of rows that flatter themselves, and of rows that are kept apart."""
    for row in block.rows:
        if any(run.calibrated_on for run in row.runs):
            yield f"{row.label}: its schedule was chosen on these records, so its numbers flatter it"
        if row.label.endswith(f" #{row.runs[0].digest}"):
            yield f"{row.label}: another run of the same covers the same dataset, so it is a row of its own"
    for key, values in block.differing.items():
        kept = "kept as separate rows, not to be compared with each other"
        yield f"the runs differ in {key} ({', '.join(values)}): {kept}"


def _commits(block: Block) -> Iterator[str]:
    """Warn of several commits, of one run too, or of one with uncommitted changes."""
    runs = [(str(run.environment.get("commit")), row.label) for row in block.rows for run in row.runs]
    texts = [(commits.replace("+", " with uncommitted changes"), label) for commits, label in runs]
    if text := _differences((commit, label) for commits, label in texts for commit in commits.split(", ")):
        yield f"rows from different commits, whose code may differ: {text}"
    elif "+" in runs[0][0]:
        yield f"all rows are from commit {texts[0][0]}: no commit has their code"


def _records(block: Block) -> Iterator[str]:
    """Warn of records that differ between rows: in their ids, their content, or the facts of their dataset."""
    values: dict[tuple[Any, ...], list[tuple[Any, str]]] = {}  # with labels, by sentence and what it is about
    for row in block.rows:
        finished = {name for run in row.runs if run.finished for name in run.datasets}
        for dataset, records in row.records.groupby("dataset"):
            if dataset in finished:
                key = "the runs met different records of {}", dataset
                values.setdefault(key, []).append((frozenset(records["_id"]), row.label))
        for run in row.runs:
            data = run.settings["data"]
            subset = run.settings["task"], row.conditions, data.get("limit"), data.get("half")
            digest = str(run.settings.get("records"))[:12]
            values.setdefault(("the content of the records of {} differs", *subset), []).append((digest, row.label))
            for name in run.datasets:
                key = "the facts of {} (prompt, metric and so on) differ", name
                values.setdefault(key, []).append((str(run.facts[name].decisive), row.label))
    names: dict[tuple[str, str], list[str]] = {}
    for (sentence, name, *_), pairs in values.items():
        if text := _differences(pairs):
            names.setdefault((sentence, text), []).append(name)
    for (sentence, text), subjects in names.items():
        yield f"{sentence.format(', '.join(subjects))}: {text}"


def _baselines(block: Block) -> Iterator[str]:
    """Warn of rows whose unmodified model answered differently from the baseline run on the same records."""
    others = [row for row in block.rows if row.method != "baseline"]
    for row, baseline in product(others, block.baselines):
        shared = ran(row.records).merge(ran(baseline.records), on=KEY, suffixes=("", "_expected"))
        answers = shared[["baseline_prediction_digest", "prediction_digest_expected"]]
        answers = answers[(answers != "").all(axis=1)]
        different = answers.nunique(axis=1) > 1
        if different.any() and agree(baseline.runs[0], row.runs[0]):
            counts = shared.loc[different.index[different], "dataset"].value_counts(sort=False)
            by_dataset = ", ".join(f"{dataset} {count}" for dataset, count in counts.items())
            yield (
                f"the unmodified model's answers beside {row.label} differ from those of {baseline.label} on "
                f"{different.sum()} of {len(answers)} records ({by_dataset})"
            )


def notes(block: Block) -> list[str]:
    """Return a sentence for each source of a schedule, floor, partial or disturbed timing, and generation config."""
    runs = [(row.label, run) for row in block.rows for run in row.runs]
    texts = [f"{label}: {provenance(run.settings['method'])}" for label, run in runs if is_calibrated(run)]
    for run in block.runs:
        if config := run.environment.get("generation_config"):
            texts.append(f"the checkpoint's generation config changes answers: it sets {format_settings(config)}")
    if datasets := ", ".join(sorted(floors(block))):
        texts.append(f"floor: every method scores 0 on every record of {datasets}, so their scores show nothing")
    labels: dict[tuple[str, Any], dict[str, None]] = {}  # by setting of `timing` and its value
    for label, run in runs:
        for setting in (run.settings.get("timing") or {}).items():
            labels.setdefault(setting, {})[label] = None
    for (name, value), rows in labels.items():
        of_rows = "" if len(rows) == len(block.rows) else f": {', '.join(rows)}"
        if name == "every" and value > 1:
            texts.append(f"times, and identical tokens and answers, are of one record in {value}{of_rows}")
        if (name, value) == ("cpu_share", 0):
            texts.append(f"no pass was looked at for other work on the machine (timing.cpu_share=0){of_rows}")
    retaken, disturbed = block.records["retaken"].sum(), (block.records["disturbed"] == 1).sum()
    if retaken:
        texts.append(
            f"other work disturbed passes: {retaken:g} were taken again, and {disturbed} records stayed disturbed"
        )
    if times := block.runs[0].environment.get("times"):
        texts.append("times were taken apart: " + ", ".join(f"{key} {value}" for key, value in times.items()))
    return list(dict.fromkeys(texts))


def floors(block: Block) -> frozenset[str]:
    """Return the datasets on which every method scores 0 on every record: they do not tell methods apart."""
    best = ran(block.records).groupby("dataset")["score"].max()
    return frozenset(best[best == 0].index)
