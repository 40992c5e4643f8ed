"""`lazybench score`: LongBench's scores of files of predictions."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lazybench.analysis.console import table
from lazybench.cli.arguments import read
from lazybench.cli.configs import add_config_dir, own_datasets
from lazybench.config import CONF
from lazybench.data.facts import DatasetFacts, datasets_of, load_facts
from lazybench.data.longbench_e import LENGTHS
from lazybench.data.record import kind, parse, wrong_length, wrong_references
from lazybench.errors import LazyBenchError, suggest
from lazybench.run import scoring
from lazybench.store.writing import replace


@dataclass(frozen=True, slots=True)
class _Scored:
    """One line of a file: its fields, its dataset, and its scores, 0 to 1; the record's length where it counts."""

    row: dict[str, Any]
    dataset: str
    score: float
    beside: dict[str, float]
    length: int | None


def main(argv: Sequence[str]) -> int:
    """Score files of predictions, print a table, and write the records with their scores if asked to."""
    given = read(_parser(), argv)
    sys.path += map(str, given.config_dir)  # a metric of the user's own is a file next to its YAML
    families = _families([*given.config_dir, CONF])
    facts = dict(ChainMap(*families.values()))
    scored = [item for path in given.files for item in _score_file(path, given.dataset, facts)]
    lines = [json.dumps({**item.row, "score": item.score}) + "\n" for item in scored]
    if given.output == "-":
        sys.stdout.writelines(lines)
    elif given.output is not None:
        replace(Path(given.output), "".join(lines))
    # With the records on stdout, the table must not mix with them.
    print(_tables(scored, families), file=sys.stderr if given.output == "-" else sys.stdout)
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser("lazybench score", description="Score predictions as LongBench's official code does.")
    fields = "JSON Lines of 'prediction' (or 'pred'), 'answers', 'all_classes', 'dataset' and, of LongBench-E, 'length'"
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help=fields)
    default = "dataset of the lines that name none (default: the stem of FILE)"
    parser.add_argument("--dataset", metavar="NAME", help=default)
    out = "write every record with its 'score' (0 to 1) to FILE, '-' for stdout"
    parser.add_argument("--output", metavar="FILE", help=out)
    add_config_dir(parser, "also know the datasets of the data configs in FOLDER")
    return parser


def _families(places: Sequence[Path]) -> dict[str, dict[str, DatasetFacts]]:
    """Facts by dataset of each kind of data, by its name; LongBench's, and those that join it, come first, without one.

    A task is the mean over datasets of one of them. A dataset that two have is the first one's.
    """
    longbench = load_facts()
    families = {"": dict(longbench)}
    for place in places:
        for name, known in own_datasets(place):
            if longbench.keys() <= known.keys():
                families[""] |= known
            else:
                families.setdefault(name, known)
    return families


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
    length = row.get("length") if facts[dataset].by_length else None
    if facts[dataset].by_length and (wrong := wrong_length(length)):
        raise LazyBenchError(f"{where}: {wrong}: {dataset} has scores by length")
    scored = facts[dataset], prediction, answers, classes
    try:
        return _Scored(row, dataset, scoring.score(*scored), scoring.beside(*scored), length)
    except LazyBenchError as error:
        raise LazyBenchError(f"{where}: {error}") from error


def _tables(scored: Sequence[_Scored], families: Mapping[str, Mapping[str, DatasetFacts]]) -> str:
    """Scores (0 to 100) by dataset and by task, in the order of LongBench's table, then of other data."""
    of_dataset: dict[str, list[_Scored]] = {}
    for item in scored:
        of_dataset.setdefault(item.dataset, []).append(item)
    lengths = LENGTHS if any(item.length is not None for item in scored) else ()
    rows, task_rows = [], []
    for data, facts in families.items():
        items = {name: of_dataset.pop(name) for name in facts if name in of_dataset}
        scores = {name: [_score(of), *map(_by_length(of).get, lengths)] for name, of in items.items()}
        rows += [[name, str(len(of)), *map(_text, scores[name]), _beside(of)] for name, of in items.items()]
        for task, found in scoring.by_task(scores, facts).items():
            means = [None if None in column else fmean(column) for column in zip(*found, strict=True)]
            named = f"{task} [data={data}]" if data else task
            task_rows.append([named, f"{len(found)}/{len(datasets_of(task, facts))}", *map(_text, means)])
    parts = [table(["dataset", "records", "score", *lengths, ""], rows)]
    if task_rows:
        parts.append(table(["task", "datasets", "score", *lengths], task_rows))
    return "\n\n".join(parts)


def _score(items: Sequence[_Scored]) -> float:
    return scoring.dataset_score([item.score for item in items])


def _by_length(items: Sequence[_Scored]) -> dict[str, float | None]:
    return scoring.by_length([(item.length, item.score) for item in items if item.length is not None])


def _beside(items: Sequence[_Scored]) -> str:
    """The further scores of a dataset, each behind its metric."""
    of = {metric: scoring.dataset_score([item.beside[metric] for item in items]) for metric in items[0].beside}
    return ", ".join(f"{metric} {score:.2f}" for metric, score in of.items())


def _text(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"
