"""`lazybench score`: LongBench's scores of a file of predictions."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lazybench.cli.arguments import read
from lazybench.cli.configs import add_config_dir, own_datasets
from lazybench.data.facts import DatasetFacts, datasets_of, load_facts, task_names
from lazybench.data.jsonl import kind, parse, wrong_references
from lazybench.errors import LazyBenchError, suggest
from lazybench.report.console import table
from lazybench.run import scoring
from lazybench.store.writing import replace


@dataclass(frozen=True, slots=True)
class _Scored:
    """One line of the file: its fields, its dataset, and its scores, 0 to 1."""

    row: dict[str, Any]
    dataset: str
    score: float
    beside: dict[str, float]


def main(argv: Sequence[str]) -> int:
    """Score a file of predictions, print a table, and write the records with their scores if asked to."""
    given = read(_parser(), argv)
    facts = load_facts()
    for place in given.config_dir:
        sys.path.append(str(place))  # a metric of the user's own is a file next to its YAML
        for _, known in own_datasets(place):
            facts |= known
    scored = _score_file(given.file, given.dataset, facts)
    lines = [json.dumps({**item.row, "score": item.score}) + "\n" for item in scored]
    if given.output == "-":
        sys.stdout.writelines(lines)
    elif given.output is not None:
        replace(Path(given.output), "".join(lines))
    # With the records on stdout, the table must not mix with them.
    print(_tables(scored, facts), file=sys.stderr if given.output == "-" else sys.stdout)
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser("lazybench score", description="Score predictions as LongBench's official code does.")
    fields = "JSON Lines of 'prediction' (or 'pred'), 'answers', 'all_classes' and 'dataset'"
    parser.add_argument("file", metavar="FILE", type=Path, help=fields)
    default = "dataset of the lines that name none (default: the stem of FILE)"
    parser.add_argument("--dataset", metavar="NAME", help=default)
    out = "write every record with its 'score' (0 to 1) to FILE, '-' for stdout"
    parser.add_argument("--output", metavar="FILE", help=out)
    add_config_dir(parser, "also know the datasets of the data configs in FOLDER")
    return parser


def _score_file(path: Path, dataset: str | None, facts: Mapping[str, DatasetFacts]) -> list[_Scored]:
    try:
        with path.open("rb") as file:
            scored = [_score_line(row, where, dataset or path.stem, facts) for where, row in parse(file, path)]
    except OSError as error:
        raise LazyBenchError(f"{path}: cannot be read: {error.strerror}") from error
    if not scored:
        raise LazyBenchError(f"{path}: the file is empty: one prediction a line was expected")
    return scored


def _score_line(row: dict[str, Any], where: str, default: str, facts: Mapping[str, DatasetFacts]) -> _Scored:
    named = row.get("dataset") is not None
    dataset = str(row["dataset"]) if named else default
    if dataset not in facts:
        hint = suggest(dataset, facts)
        if not named:
            hint += " (the line has no 'dataset': name it with --dataset NAME)"
        raise LazyBenchError(f"{where}: unknown dataset {dataset!r}: {hint}")
    prediction = row.get("prediction", row.get("pred"))
    if not isinstance(prediction, str):
        raise LazyBenchError(f"{where}: 'prediction' (or 'pred') must be a string, not {kind(prediction)}")
    answers, classes = row.get("answers"), row.get("all_classes")
    if wrong := wrong_references(answers, classes):
        raise LazyBenchError(f"{where}: {wrong}")
    scored = facts[dataset], prediction, answers, classes
    try:
        return _Scored(row, dataset, scoring.score(*scored), scoring.beside(*scored))
    except LazyBenchError as error:
        raise LazyBenchError(f"{where}: {error}") from error


def _tables(scored: Sequence[_Scored], facts: Mapping[str, DatasetFacts]) -> str:
    """Scores (0 to 100) by dataset and by task, in the order of LongBench's table."""
    by_dataset = {name: [item for item in scored if item.dataset == name] for name in facts}
    by_dataset = {name: items for name, items in by_dataset.items() if items}
    scores = {name: scoring.dataset_score([item.score for item in items]) for name, items in by_dataset.items()}
    rows = []
    for name, items in by_dataset.items():
        beside = {of: scoring.dataset_score([item.beside[of] for item in items]) for of in items[0].beside}
        also = ", ".join(f"{metric} {score:.2f}" for metric, score in beside.items())
        rows.append([name, str(len(items)), f"{scores[name]:.2f}", also])
    parts = [table(["dataset", "records", "score", ""], rows)]
    by_task = scoring.task_scores(scores, facts)
    rows = []
    for task in (task for task in task_names(facts) if task in by_task):
        members = datasets_of(task, facts)
        rows.append([task, f"{sum(name in scores for name in members)}/{len(members)}", f"{by_task[task]:.2f}"])
    if rows:
        parts.append(table(["task", "datasets", "score"], rows))
    return "\n\n".join(parts)
