"""`lazybench score`: LongBench's scores of a file of predictions."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lazybench.cli.arguments import read_arguments
from lazybench.data.facts import DatasetFacts, datasets_of, load_facts, tasks
from lazybench.data.jsonl import is_strings, kind, parse
from lazybench.errors import LazyBenchError, suggest
from lazybench.run import scoring


@dataclass(frozen=True, slots=True)
class _Scored:
    """One line of the file: its fields, its dataset, and its scores, 0 to 1."""

    row: dict[str, Any]
    dataset: str
    score: float
    beside: dict[str, float]


def main(argv: Sequence[str]) -> int:
    """Score a file of predictions, print a table, and write the records with their scores if asked to.

    Returns:
        0. argparse ends the process for `--help`.

    Raises:
        LazyBenchError: the arguments are wrong, or the file, or a line of it, cannot be scored; the message names the
            line.
    """
    args = read_arguments(_parser(), argv)
    facts = load_facts()
    scored = _score_file(args.file, args.dataset, facts)
    if args.out is not None:
        lines = [json.dumps({**item.row, "score": item.score}) + "\n" for item in scored]
        _write(args.out, lines)
    # With the records on stdout, the table must not mix with them.
    print(_table(scored, facts), file=sys.stderr if args.out == "-" else sys.stdout)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lazybench score",
        description="Score predictions as LongBench's official code does.",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="JSON Lines of 'prediction' (or 'pred'), 'answers', 'all_classes' and 'dataset'",
    )
    parser.add_argument(
        "--dataset", metavar="NAME", help="dataset of the lines that name none (default: the stem of FILE)"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write every record with its 'score' (0 to 1) to FILE, '-' for stdout"
    )
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
    if not is_strings(answers):
        raise LazyBenchError(f"{where}: 'answers' must be a list of one string or more")
    if classes is not None and not is_strings(classes):
        raise LazyBenchError(f"{where}: 'all_classes' must be null or a list of one string or more")
    try:
        return _Scored(
            row,
            dataset,
            scoring.score(facts[dataset], prediction, answers, classes),
            scoring.beside(facts[dataset], prediction, answers, classes),
        )
    except LazyBenchError as error:
        raise LazyBenchError(f"{where}: {error}") from error


def _write(out: str, lines: Sequence[str]) -> None:
    """Write the lines whole or not at all."""
    if out == "-":
        sys.stdout.writelines(lines)
        return
    # A link stays a link, and a device such as /dev/null a device: neither is renamed over.
    path = Path(os.path.realpath(out))
    replace = path.is_file() or not path.exists()
    target = path.with_name(f".{path.name}.{os.getpid()}.tmp") if replace else path
    try:
        with target.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        if replace:
            target.replace(path)
    except OSError as error:
        if replace:
            target.unlink(missing_ok=True)
        raise LazyBenchError(f"{out}: cannot be written: {error.strerror}") from error


def _table(scored: Sequence[_Scored], facts: Mapping[str, DatasetFacts]) -> str:
    """Scores (0 to 100) by dataset and by task, in the order of LongBench's table."""
    by_dataset = {name: [item for item in scored if item.dataset == name] for name in facts}
    by_dataset = {name: items for name, items in by_dataset.items() if items}
    scores = {name: scoring.dataset_score([item.score for item in items]) for name, items in by_dataset.items()}
    lines = [f"{'dataset':<22}{'records':>8}{'score':>8}"]
    for name, items in by_dataset.items():
        further = "".join(
            f"  {metric} {scoring.dataset_score([item.beside[metric] for item in items]):.2f}"
            for metric in items[0].beside
        )
        lines.append(f"{name:<22}{len(items):>8}{scores[name]:>8.2f}{further}")
    by_task = scoring.task_scores(scores, facts)
    if by_task:
        lines += ["", f"{'task':<22}{'datasets':>8}{'score':>8}"]
    for task in tasks():
        if task in by_task:
            members = datasets_of(task, facts)
            present = f"{sum(name in scores for name in members)}/{len(members)}"
            lines.append(f"{task:<22}{present:>8}{by_task[task]:>8.2f}")
    return "\n".join(lines)
