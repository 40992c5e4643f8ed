"""Warnings before numbers are compared, and notes below the tables."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from lazybench.analysis.averages import ran
from lazybench.analysis.grouping import KEY, Block, Row, agree
from lazybench.analysis.labels import format_settings, is_calibrated, model_title, provenance, short
from lazybench.analysis.run_data import Run


def warnings(block: Block) -> list[str]:
    """Return a sentence for each thing that makes a comparison within one model and data wrong."""
    parts = (_rows, _commits, _records, _baselines)
    return [f"{block.title}: {text}" for part in parts for text in part(block)]


def between_models(blocks: Sequence[Block]) -> list[str]:
    """Return a sentence where models' generation configs change answers in different ways; older runs do not say."""
    runs = [run for block in blocks for run in block.runs]
    configs = ((_generation(run), model_title(run.model)) for run in runs)
    text = _differences((config or "nothing", model) for config, model in configs if config is not None)
    return [f"models' generation configs set different things, so their answers do not compare: {text}"] if text else []


def _generation(run: Run) -> str | None:
    """Return what in its checkpoint's generation config changes answers; None where the run does not say."""
    config = run.environment.get("generation_config")
    return format_settings(config) if isinstance(config, dict) else None


def _differences(pairs: Iterable[tuple[Any, str]], form: Callable[[Any], str] = str) -> str:
    """List each value with its rows' labels, from pairs of both; empty where all rows have the same value."""
    labels: dict[Any, dict[str, None]] = {}
    for value, label in pairs:
        labels.setdefault(value, {})[label] = None
    text = "; ".join(f"{form(value)} ({', '.join(rows)})" for value, rows in labels.items())
    return text if len(labels) > 1 else ""


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
    """Warn of several commits, or of one with uncommitted changes."""
    commits = [(str(run.environment.get("commit")), row.label) for row in block.rows for run in row.runs]
    commit = commits[0][0]
    if text := _differences(commits, lambda commit: commit.replace("+", " with uncommitted changes")):
        yield f"rows from different commits, whose code may differ: {text}"
    elif "+" in commit:
        yield f"all rows are from commit {commit.replace('+', '')} with uncommitted changes: no commit has their code"
    elif ", " in commit:
        yield f"all rows are from runs that went on at another commit, whose code may differ: {commit}"


def _records(block: Block) -> Iterator[str]:
    """Warn of records that differ between rows: in their ids, their content, or the facts of their dataset."""
    ids: dict[str, list[tuple[frozenset[str], str]]] = {}
    facts: dict[str, list[tuple[str, str]]] = {}
    contents: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for row in block.rows:
        finished = {name for run in row.runs if run.finished for name in run.datasets}
        for dataset, records in row.records.groupby("dataset"):
            if dataset in finished:
                ids.setdefault(str(dataset), []).append((frozenset(records["_id"]), row.label))
        for run in row.runs:
            for name in run.datasets:
                facts.setdefault(name, []).append((str(run.facts[name].decisive), row.label))
            data = run.settings["data"]
            subset = run.settings["task"], row.conditions, data.get("limit"), data.get("half")
            contents.setdefault(subset, []).append((str(run.settings.get("records"))[:12], row.label))
    differing: dict[str, list[str]] = {}
    for dataset, pairs in ids.items():
        differing.setdefault(_differences(pairs, lambda names: f"{len(names)} a dataset"), []).append(dataset)
    for text, datasets in differing.items():
        if text:
            yield f"the runs met different records of {', '.join(datasets)}: {text}"
    for (task, *_), pairs in contents.items():
        if text := _differences(pairs):
            yield f"the content of the records of {task} differs: {text}"
    for name, pairs in facts.items():
        if text := _differences(pairs, short):
            yield f"the facts of {name} (prompt, metric and so on) differ: {text}"


def _baselines(block: Block) -> Iterator[str]:
    """Warn of rows whose unmodified model answered differently from the baseline run on the same records."""
    others = [row for row in block.rows if row.method != "baseline"]
    for row, baseline in product(others, block.baselines):
        expected, actual = _answers(baseline, "prediction_digest"), _answers(row, "baseline_prediction_digest")
        shared = sorted(actual.keys() & expected.keys())
        different = Counter(key[0] for key in shared if actual[key] != expected[key])
        if different and agree(baseline.runs[0], row.runs[0]):
            by_dataset = ", ".join(f"{dataset} {count}" for dataset, count in different.items())
            yield (
                f"the unmodified model's answers beside {row.label} differ from those of {baseline.label} on "
                f"{sum(different.values())} of {len(shared)} records ({by_dataset})"
            )


def _answers(row: Row, column: str) -> dict[tuple[str, str], str]:
    records = ran(row.records).set_index(KEY)[column]
    return records[records != ""].to_dict()


def notes(block: Block) -> list[str]:
    """Return a sentence for each source of a schedule, floor, partial or disturbed timing, and generation config."""
    runs = [(row, run) for row in block.rows for run in row.runs]
    texts = [f"{row.label}: {provenance(run.settings['method'])}" for row, run in runs if is_calibrated(run)]
    configs = filter(None, map(_generation, block.runs))
    texts += [f"the checkpoint's generation config changes answers: it sets {config}" for config in configs]
    if datasets := ", ".join(sorted(floors(block))):
        texts.append(f"floor: every method scores 0 on every record of {datasets}, so their scores show nothing")
    labels: dict[tuple[str, Any], dict[str, None]] = {}  # by setting of `timing` and its value
    for row, run in runs:
        for setting in (run.settings.get("timing") or {}).items():
            labels.setdefault(setting, {})[row.label] = None
    for (name, value), rows in labels.items():
        whose = "" if len(rows) == len(block.rows) else f": {', '.join(rows)}"
        if name == "every" and value > 1:
            texts.append(f"times, and identical tokens and answers, are of one record in {value}{whose}")
        if (name, value) == ("cpu_share", 0):
            texts.append(f"no pass was looked at for other work on the machine (timing.cpu_share=0){whose}")
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
