"""Warnings before numbers are compared, and notes below the tables."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from lazybench.analysis.averages import MEAN, Measure, drop_failed
from lazybench.analysis.grouping import KEY, Block, agree
from lazybench.analysis.labels import format_settings, is_calibrated, provenance, short


def warnings(block: Block) -> list[str]:
    """Return a sentence for each reason not to compare the block's rows."""
    parts = (_rows, _commits, _records, _baselines)
    return [f"{block.title}: {text}" for part in parts for text in part(block)]


def _differences(pairs: Iterable[tuple[str | frozenset[str], str]]) -> str:
    """List the values, each a text or a dataset's ids, with the labels of their rows; empty if all are the same."""
    labels: dict[str | frozenset[str], list[str]] = {}
    for value, label in dict.fromkeys(pairs):
        labels.setdefault(value, []).append(label)
    if len(labels) < 2:
        return ""
    texts = {value: short(value) if isinstance(value, str) else f"{len(value)} a dataset" for value in labels}
    return "; ".join(f"{texts[value]} ({', '.join(rows)})" for value, rows in labels.items())


def _rows(block: Block) -> Iterator[str]:
    """Warn of rows calibrated on their own records, and of rows that are kept separate."""
    for row in block.rows:
        if any(run.calibrated_on for run in row.runs):
            yield f"{row.label}: its schedule was chosen on these records, so its numbers flatter it"
        if row.label.endswith(f" #{row.runs[0].digest}"):
            yield f"{row.label}: another run with this label has other code, answers or records, so each is a row"
    for key, labels in block.differing.items():
        values = "; ".join(block.numbered(key, value) for value in labels)
        kept = "kept as separate rows, not to be compared with each other"
        usual = f"; rows that do not name it have {block.usual[key]}" if key in block.usual else ""
        yield f"the runs differ in {key} ({values}): {kept}{usual}"


def _commits(block: Block) -> Iterator[str]:
    """Warn of different commits, and of uncommitted changes; a resumed run may have several commits."""
    pairs = []
    for row in block.rows:
        for run in row.runs:
            commits = str(run.environment.get("commit")).replace("+", " with uncommitted changes")
            pairs += [(commit, row.label) for commit in commits.split(", ")]
    if text := _differences(pairs):
        yield f"rows from different commits, whose code may differ: {text}"
    elif "uncommitted" in pairs[0][0]:
        yield f"all rows are from commit {pairs[0][0]}: no commit has their code"


def _records(block: Block) -> Iterator[str]:
    """Warn of records that differ between rows: in their ids, their content, or the facts of their dataset."""
    pairs = defaultdict(list)  # values with their rows' labels, by sentence, dataset or task, and choice of records
    for row in block.rows:
        finished = {name for run in row.runs if run.finished for name in run.datasets}
        for dataset, records in row.records.groupby("dataset"):
            if dataset in finished:
                ids = frozenset(records["_id"])
                pairs["the runs have different records of {}", dataset, ()].append((ids, row.label))
        for run in row.runs:
            data, digest = run.settings["data"], str(run.settings.get("records"))[:12]
            subset = row.conditions, data.get("limit"), data.get("half")
            pairs["the content of the records of {} differs", run.settings["task"], subset].append((digest, row.label))
            for name in run.datasets:
                facts = str(replace(run.facts[name], groups=[]))  # groups decide no result
                pairs["the facts of {} (prompt, metric and so on) differ", name, ()].append((facts, row.label))
    names = defaultdict(list)
    for (sentence, name, _), values in pairs.items():
        if text := _differences(values):
            names[sentence, text].append(name)
    for (sentence, text), subjects in names.items():
        yield f"{sentence.format(', '.join(subjects))}: {text}"


def _baselines(block: Block) -> Iterator[str]:
    """Warn of rows whose unmodified model answered differently from the baseline's run on the same records."""
    labels: dict[str, list[str]] = {}
    others = [row for row in block.rows if row.method != "baseline"]
    for row, baseline in product(others, block.baselines):
        shared = drop_failed(row.records).merge(drop_failed(baseline.records), on=KEY, suffixes=("", "_expected"))
        answer, expected = shared["baseline_prediction_digest"], shared["prediction_digest_expected"]
        is_known = (answer != "") & (expected != "")
        different = shared[is_known & (answer != expected)]
        if len(different) and agree(baseline.runs[0], row.runs[0]):
            counts = different["dataset"].value_counts().sort_index()
            by_dataset = ", ".join(f"{dataset} {count}" for dataset, count in counts.items())
            text = f"{baseline.label} on {len(different)} of {is_known.sum()} records ({by_dataset})"
            labels.setdefault(text, []).append(row.label)
    for text, rows in labels.items():
        yield f"the unmodified model's answers beside {', '.join(rows)} differ from those of {text}"


def is_measured(measure: Measure, lines: pd.DataFrame) -> bool:
    """Return whether any run took this measure, so that it needs a column."""
    notes = lines[f"{measure.key}_note"].dropna()  # missing for models whose datasets lack the group
    return bool((notes != measure.absent).any())


def gaps(lines: pd.DataFrame, measures: Sequence[Measure]) -> list[str]:
    """Return which records a model's numbers cover and why others are missing; name the rows unless it is all of them.

    `lines` and `measures` are a table's; each line has the `name` of its row.
    """
    taken = [measure for measure in measures if is_measured(measure, lines)]
    names: dict[str, dict[str, None]] = {}
    for _, row in lines.groupby("label", sort=False):
        mean = row[(row["task"] == MEAN) & (row["missing"] == "")]
        for line in (mean if len(mean) else row[row["task"] != MEAN]).to_dict("records"):
            task = "" if len(mean) or lines["task"].nunique() == 1 else f"{line['title']}: "
            for text in [line["missing"]] if line["missing"] else _gaps(line, taken):
                names.setdefault(task + text, {})[line["name"]] = None
    every = {*lines.loc[lines["method"] != "baseline", "name"]}
    return [text if every <= {*rows} else f"{text} ({', '.join(rows)})" for text, rows in names.items()]


def _gaps(line: Mapping[str, Any], measures: Sequence[Measure]) -> Iterator[str]:
    if line["datasets"] < line["datasets_of_task"]:
        yield f"{line['datasets']} of {line['datasets_of_task']} datasets"
    yield from (f"{line[key]} of {line['records']} records {key}" for key in ("failed", "disturbed") if line[key])
    for measure in measures:
        note, is_timed = line[f"{measure.key}_note"], measure.timed and pd.notna(line[measure.key])
        is_expected = line["method"] == "baseline" and (measure.timed or note == measure.absent)
        if note not in ("", "floor") and not is_expected:
            yield f"{'timed' if is_timed else measure.title}: {note}"


def settings(block: Block, lines: pd.DataFrame) -> list[str]:
    """Return settings and conditions that the rows' names leave out, with the source of calibrated settings.

    `lines` are as for `gaps`.
    """
    texts: dict[str, dict[str, None]] = {}  # by source
    runs = {row.label: row.runs for row in block.rows}
    for line in lines.drop_duplicates("label").itertuples():
        if line.conditions not in line.name:
            texts.setdefault("", {})[f"{line.name}: {line.conditions}"] = None
        for run in runs.get(line.label, ()):
            setting, source = provenance(run.settings["method"]) if is_calibrated(run) else (line.setting, "")
            if not line.name.endswith(setting):
                texts.setdefault(source, {})[f"{line.name}: {setting}"] = None
    return [f"{'; '.join(rows)} {source}".rstrip() for source, rows in texts.items()]


def notes(block: Block) -> list[str]:
    """Return a sentence for each generation config, for floors, and for times from other runs."""
    texts = []
    for run in block.runs:
        if config := run.environment.get("generation_config"):
            texts.append(f"the checkpoint's generation config changes answers: it sets {format_settings(config)}")
    if datasets := ", ".join(sorted(block.floors)):
        texts.append(f"floor: every method scores 0 on every record of {datasets}, so their scores show nothing")
    if times := block.runs[0].environment.get("times"):
        texts.append(f"times are from other runs: commit {times['commit']}, {times['threads']} threads")
    return list(dict.fromkeys(texts))
