"""`lazybench score`: LongBench's scores of files of predictions."""

import json
import sys
from argparse import ArgumentParser
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from lazybench.analysis.console import table
from lazybench.cli.arguments import add_config_dir, own_datasets, read
from lazybench.config import CONF
from lazybench.data.facts import DatasetFacts, datasets_of, load_facts
from lazybench.data.longbench_e import LENGTHS
from lazybench.data.record import parse, wrong_length, wrong_references
from lazybench.errors import LazyBenchError, suggest
from lazybench.run import scoring
from lazybench.store.writing import replace

Facts = Mapping[str, DatasetFacts]


def main(argv: Sequence[str]) -> int:
    """Score files of predictions, print a table, and write the records with their scores if asked to."""
    given = read(_parser(), argv)
    sys.path += map(str, given.config_dir)  # a metric of the user's own is a file next to its YAML
    families = _families([*given.config_dir, CONF])
    facts = dict(ChainMap(*families.values()))
    by_file = {path: _score_file(path, given.dataset, facts) for path in given.files}
    _refuse_mixed(by_file)
    scored = [of for lines in by_file.values() for of in lines]
    lines = [json.dumps({**of["row"], "score": of["score"]}) + "\n" for of in scored]
    if given.output == "-":
        sys.stdout.writelines(lines)
    elif given.output is not None:
        replace(Path(given.output), "".join(lines))
    ran = [of for of in scored if not of["error"]]
    if len(ran) < len(scored):
        print(f"{len(scored) - len(ran)} of {len(scored)} records failed and are in no score", file=sys.stderr)
    # With the records on stdout, the table must not mix with them.
    print(_tables(ran, families), file=sys.stderr if given.output == "-" else sys.stdout)
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
    """Facts by dataset of each kind of data, by its name; LongBench's, and those that join it, first, without one."""
    longbench = load_facts()
    families = {"": dict(longbench)}
    for place in places:
        for name, known in own_datasets(place):
            if not longbench.keys() <= known.keys():
                families.setdefault(name, known)
                continue
            own = {dataset: facts for dataset, facts in known.items() if facts != longbench.get(dataset)}
            for dataset, facts in own.items():
                if families[""].get(dataset) not in (longbench.get(dataset), facts):
                    raise LazyBenchError(f"data={name} and another data config differ in {dataset!r}: rename it in one")
            families[""] |= own
    return families


def _score_file(path: Path, dataset: str | None, facts: Facts) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            scored = [_score_line(row, where, dataset or path.stem, facts) for where, row in parse(file, path)]
    except OSError as error:
        raise LazyBenchError(f"{path}: cannot be read: {error.strerror}") from error
    if all(of["error"] for of in scored):
        raise LazyBenchError(f"{path}: there is no prediction in it: one a line was expected")
    return scored


def _refuse_mixed(by_file: Mapping[Path, Sequence[Mapping[str, Any]]]) -> None:
    """Raise `LazyBenchError` for two answers to a record, or two files of a dataset that name no records.

    Their scores would be one mean over two models or methods.
    """
    met: dict[tuple[str, str], Path] = {}
    for path, lines in by_file.items():
        for of in (line for line in lines if not line["error"]):
            dataset, record = of["dataset"], str(of["row"].get("_id", ""))
            again, other = (dataset, record) in met, met.setdefault((dataset, record), path)
            if other is not path or (again and record):
                what = f"record {record} of {dataset}" if record else dataset
                raise LazyBenchError(f"{path}: {what} is in {other}, too: score each model's or method's by itself")


def _score_line(row: dict[str, Any], where: str, default: str, facts: Facts) -> dict[str, Any]:
    """One line of a file, its dataset, its scores, 0 to 1, and its length where it counts."""
    named = row.get("dataset") is not None
    dataset = str(row["dataset"]) if named else default
    if dataset not in facts:
        hint = "" if named else " (the line has no 'dataset': name it with --dataset NAME)"
        raise LazyBenchError(f"{where}: unknown dataset {dataset!r}: {suggest(dataset, facts)}{hint}")
    given = {"row": row, "dataset": dataset, "error": row.get("error") or "", "score_by_seed": "", "length": None}
    if given["error"]:  # a run's record that its method could not answer
        return given | {"score": None, "beside": {}}
    # A run's record of several seeds scores as their mean.
    repeats = row.get("repeats") or [row]
    if not isinstance(repeats, list) or not all(isinstance(of, dict) for of in repeats):
        raise LazyBenchError(f"{where}: 'repeats' must be a list of objects, each with a 'prediction'")
    predictions = [of.get("prediction", of.get("pred")) for of in repeats]
    for wrong in (of for of in predictions if not isinstance(of, str)):
        said = json.dumps(wrong, default=str)
        raise LazyBenchError(f"{where}: 'prediction' (or 'pred') must be a string, not {said:.60}")
    answers, classes = row.get("answers"), row.get("all_classes")
    if wrong := wrong_references(answers, classes):
        raise LazyBenchError(f"{where}: {wrong}")
    length = row.get("length") if facts[dataset].by_length else None
    if facts[dataset].by_length and (wrong := wrong_length(length)):
        raise LazyBenchError(f"{where}: {wrong}: {dataset} has scores by length")
    of = answers, classes
    try:
        score = fmean(scoring.score(facts[dataset], text, *of) for text in predictions)
        every = [scoring.beside(facts[dataset], text, *of) for text in predictions]
        beside = {metric: fmean(each[metric] for each in every) for metric in every[0]}
    except LazyBenchError as error:
        raise LazyBenchError(f"{where}: {error}") from error
    return given | {"length": length, "score": score, "beside": beside}


def _tables(lines: Sequence[Mapping[str, Any]], families: Mapping[str, Facts]) -> str:
    """Scores (0 to 100) by dataset and by task, in the order of LongBench's table, then of other data."""
    import pandas as pd  # these take a second

    from lazybench.analysis.averages import SCORE, SCORE_BY_LENGTH, measured

    scored = pd.DataFrame(lines)
    by_length = scored["length"].notna().any()
    measures, heads = (SCORE, *(SCORE_BY_LENGTH if by_length else ())), ["score", *(LENGTHS if by_length else ())]

    def cells(records: pd.DataFrame) -> list[str]:
        found = [measured(records, of).estimate for of in measures]
        return ["-" if of is None else f"{of.value:.2f}" for of in found]

    rows, task_rows = [], []
    for data, facts in families.items():
        there = {name: of for name in facts if not (of := scored[scored["dataset"] == name]).empty}
        scored = scored[~scored["dataset"].isin(facts)]
        for name, of in there.items():
            further = pd.DataFrame(of["beside"].tolist()).mean() * 100
            told = ", ".join(f"{metric} {score:.2f}" for metric, score in further.items())
            rows.append([name, str(len(of)), *cells(of.assign(task=name)), told])
        for task, found in scoring.by_task(there, facts).items():
            named, count = f"{task} [data={data}]" if data else task, len(datasets_of(task, facts))
            task_rows.append([named, f"{len(found)}/{count}", *cells(pd.concat(found).assign(task=task))])
    parts = [table(["dataset", "records", *heads, ""], rows)]
    parts += [table(["task", "datasets", *heads], task_rows)] if task_rows else []
    return "\n\n".join(parts)
