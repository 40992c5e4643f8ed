"""`lazybench score`: compute LongBench's scores of files of predictions."""

import json
import sys
from argparse import ArgumentParser
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from lazybench.analysis.console import table
from lazybench.cli.arguments import add_config_dir, own_datasets, read
from lazybench.config import CONF
from lazybench.data.facts import DatasetFacts, datasets_of, load_facts
from lazybench.data.longbench_e import LENGTHS
from lazybench.data.record import parse, wrong_field
from lazybench.errors import LazyBenchError, suggest
from lazybench.run import scoring
from lazybench.store.writing import replace

Facts = Mapping[str, DatasetFacts]


class _Scored(NamedTuple):
    """A line of a file and its scores, 0 to 1: LongBench's, which is None for a failed record, and further metrics."""

    row: dict[str, Any]
    dataset: str
    score: float | None = None
    further: Mapping[str, float] = {}
    length: int | None = None  # in words, if the dataset has scores by length


def main(argv: Sequence[str]) -> int:
    """Score files of predictions, print a table, and write the records with their scores if asked to."""
    parser = ArgumentParser("lazybench score", description="Score predictions as LongBench's official code does.")
    fields = "JSON Lines of 'prediction' (or 'pred'), 'answers', 'all_classes', 'dataset' and, of LongBench-E, 'length'"
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help=fields)
    default = "dataset of the lines that name none (default: the stem of FILE)"
    parser.add_argument("--dataset", metavar="NAME", help=default)
    output = "write every record with its 'score' (0 to 1) to FILE, '-' for stdout"
    parser.add_argument("--output", metavar="FILE", help=output)
    add_config_dir(parser, "also know the datasets of the data configs in FOLDER")
    flags = read(parser, argv)
    sys.path += map(str, flags.config_dir)  # for the user's metrics
    families = _families([*flags.config_dir, CONF])
    facts = dict(ChainMap(*families.values()))
    by_file = {path: _score_file(path, flags.dataset, facts) for path in flags.files}
    _refuse_mixed(by_file)
    lines = [line for scored in by_file.values() for line in scored]
    written = [json.dumps({**line.row, "score": line.score}) + "\n" for line in lines]
    if flags.output == "-":
        sys.stdout.writelines(written)
    elif flags.output is not None:
        replace(Path(flags.output), "".join(written))
    answered = [line for line in lines if line.score is not None]
    if len(answered) < len(lines):
        print(f"{len(lines) - len(answered)} of {len(lines)} records failed and are in no score", file=sys.stderr)
    print(_tables(answered, families), file=sys.stderr if flags.output == "-" else sys.stdout)
    return 0


def _families(folders: Sequence[Path]) -> dict[str, dict[str, DatasetFacts]]:
    """Return facts by dataset for each kind of data, by its name; LongBench's has none and takes in what extends it."""
    longbench = load_facts()
    families = {"": dict(longbench)}
    for folder in folders:
        for name, known in own_datasets(folder):
            if not longbench.keys() <= known.keys():
                families.setdefault(name, known)
                continue
            own = {dataset: facts for dataset, facts in known.items() if facts != longbench.get(dataset)}
            for dataset, facts in own.items():
                if families[""].get(dataset) not in (longbench.get(dataset), facts):
                    raise LazyBenchError(f"data={name} and another data config differ in {dataset!r}: rename it in one")
            families[""] |= own
    return families


def _score_file(path: Path, dataset: str | None, facts: Facts) -> list[_Scored]:
    try:
        with path.open("rb") as file:
            scored = [_score_line(row, where, dataset or path.stem, facts) for where, row in parse(file, path)]
    except OSError as error:
        raise LazyBenchError(f"{path}: cannot be read: {error.strerror}") from error
    if all(line.score is None for line in scored):
        raise LazyBenchError(f"{path}: there is no prediction in it: one a line was expected")
    return scored


def _refuse_mixed(by_file: Mapping[Path, Sequence[_Scored]]) -> None:
    """Raise `LazyBenchError` for answers of two models or methods: two to one record, or two files of a dataset."""
    files: dict[tuple[str, str], Path] = {}
    for path, lines in by_file.items():
        for line in (line for line in lines if line.score is not None):
            dataset, record = line.dataset, str(line.row.get("_id", ""))
            repeated, other = (dataset, record) in files, files.setdefault((dataset, record), path)
            if other != path or (repeated and record):
                name = f"record {record} of {dataset}" if record else dataset
                raise LazyBenchError(f"{path}: {name} is in {other}, too: score each model's or method's by itself")


def _score_line(row: dict[str, Any], where: str, default: str, facts: Facts) -> _Scored:
    """Score one line; of a run's record with several seeds, the mean over them."""
    named = row.get("dataset") is not None
    dataset = str(row["dataset"]) if named else default
    if dataset not in facts:
        hint = "" if named else " (the line has no 'dataset': name it with --dataset NAME)"
        raise LazyBenchError(f"{where}: unknown dataset {dataset!r}: {suggest(dataset, facts)}{hint}")
    if row.get("error"):
        return _Scored(row, dataset)
    known, answers, classes, length = facts[dataset], row.get("answers"), row.get("all_classes"), row.get("length")
    repeats = row.get("repeats") or [row]
    if not isinstance(repeats, list) or not all(isinstance(repeat, dict) for repeat in repeats):
        raise LazyBenchError(f"{where}: 'repeats' must be a list of objects, each with a 'prediction'")
    predictions = [repeat.get("prediction", repeat.get("pred")) for repeat in repeats]
    for prediction in predictions:
        if not isinstance(prediction, str):
            value = json.dumps(prediction, default=str)
            raise LazyBenchError(f"{where}: 'prediction' (or 'pred') must be a string, not {value:.60}")
    fields = ["answers", "all_classes", *["length"] * known.by_length]
    if wrong := wrong_field(row, fields):
        raise LazyBenchError(f"{where}: {wrong}")
    try:
        score = fmean(scoring.score(known, text, answers, classes) for text in predictions)
        further = [scoring.variants(known, text, answers, classes) for text in predictions]
    except LazyBenchError as error:
        raise LazyBenchError(f"{where}: {error}") from error
    means = {metric: fmean(scores[metric] for scores in further) for metric in further[0]}
    return _Scored(row, dataset, score, means, length if known.by_length else None)


def _tables(lines: Sequence[_Scored], families: Mapping[str, Facts]) -> str:
    """Format mean scores, 0 to 100, by dataset and by task, in the order of LongBench's table."""
    lengths = LENGTHS if any(line.length is not None for line in lines) else {}

    def means(datasets: Sequence[Sequence[_Scored]]) -> list[str]:
        """Format the mean over datasets of their means, in all and by length; `-` if a dataset lacks a length."""
        cells = [f"{100 * fmean(fmean(line.score for line in dataset) for dataset in datasets):.2f}"]
        for low, high in lengths.values():
            scores = [
                [line.score for line in dataset if line.length is not None and low <= line.length < high]
                for dataset in datasets
            ]
            cells.append(f"{100 * fmean(map(fmean, scores)):.2f}" if all(scores) else "-")
        return cells

    rows, task_rows, shown = [], [], set()
    for data, facts in families.items():
        names = [name for name in facts if name not in shown]
        shown |= facts.keys()
        scored = {name: [line for line in lines if line.dataset == name] for name in names}
        scored = {name: dataset for name, dataset in scored.items() if dataset}
        for name, dataset in scored.items():
            further = {key: 100 * fmean(line.further[key] for line in dataset) for key in dataset[0].further}
            notes = ", ".join(f"{metric} {score:.2f}" for metric, score in further.items())
            rows.append([name, str(len(dataset)), *means([dataset]), notes])
        for task, datasets in scoring.by_task(scored, facts).items():
            title, count = f"{task} [data={data}]" if data else task, len(datasets_of(task, facts))
            task_rows.append([title, f"{len(datasets)}/{count}", *means(datasets)])
    parts = [table(["dataset", "records", "score", *lengths, ""], rows)]
    parts += [table(["task", "datasets", "score", *lengths], task_rows)] if task_rows else []
    return "\n\n".join(parts)
