"""`lazybench score`: compute LongBench's scores of files of predictions."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from lazybench.analysis.averages import scores_in
from lazybench.analysis.console import frame_table
from lazybench.analysis.records import KEY, read_records
from lazybench.cli.arguments import add_config_dir, own_datasets, read
from lazybench.config import CONF
from lazybench.data.dataset_configs import DatasetConfig, load_dataset_configs
from lazybench.data.longbench_e import LENGTHS
from lazybench.data.record import parse, wrong_fields
from lazybench.errors import LazyBenchError, first_line, prefix_errors, suggest
from lazybench.run import scoring
from lazybench.store.writing import replace

# By dataset, its config and the data config that defines it; an empty name for LongBench and configs that extend it.
Known = Mapping[str, tuple[str, DatasetConfig]]

# Columns of a scored line, before the scores by other metrics.
_COLUMNS = ("path", "dataset", "_id", "score", "length", "groups")
# Columns of a report's records that are read.
_REPORTED = ("model", "data", "conditions", "method", "label", *KEY, "prediction", "error", "length", "groups")
_REPORTED += ("answers", "all_classes")


def main(argv: Sequence[str]) -> int:
    """Score files of predictions, print a table, and with `--output` write the records with their scores."""
    parser = ArgumentParser("lazybench score", description="Score predictions as LongBench's official code does.")
    fields = (
        "JSON Lines of 'prediction' (or 'pred'), 'answers', 'all_classes', 'dataset' and, of LongBench-E, 'length'; "
    )
    fields += "or the records.csv of a report, scored row by row"
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help=fields)
    default = "dataset of the lines that name none (default: the stem of FILE)"
    parser.add_argument("--dataset", metavar="NAME", help=default)
    output = "write every record with its 'score' (0 to 1) to FILE"
    parser.add_argument("--output", metavar="FILE", type=Path, help=output)
    add_config_dir(parser, "also use the datasets of the data configs in FOLDER")
    flags = read(parser, argv)
    sys.path += map(str, flags.config_dir)  # for the user's metrics
    known = _known([*flags.config_dir, CONF])
    pairs_by_row: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for path in dict.fromkeys(flags.files):
        default, has_score = flags.dataset or path.stem, False
        for row, where, line in _read(path):
            scores = {"path": path} | _score(line, where, default, known)
            has_score |= scores["score"] is not None
            pairs_by_row.setdefault(row, []).append((line, scores))
        if not has_score:
            raise LazyBenchError(f"{path}: there is no prediction in it: one per line was expected")
    tables, written = [], []
    for row, pairs in pairs_by_row.items():
        scored = pd.DataFrame([scores for _, scores in pairs])
        answered = scored.dropna(subset="score")
        _refuse_mixed(answered)
        if len(answered) < len(scored):
            count = f"{len(scored) - len(answered)} of {len(scored)} records failed and are in no score"
            print(f"{row.strip()}: {count}" if row else count, file=sys.stderr)
        if len(answered):
            tables.append(row + _tables(answered, known))
        written += [json.dumps({**line, "score": scores["score"]}) + "\n" for line, scores in pairs]
    if flags.output is not None:
        replace(flags.output, "".join(written))
    print("\n\n".join(tables))
    return 0


def _known(folders: Sequence[Path]) -> Known:
    """Return LongBench's datasets and those of the data configs in some folders."""
    longbench = load_dataset_configs()
    known = {name: ("", config) for name, config in longbench.items()}
    for folder in folders:
        for data, datasets in own_datasets(folder):
            extends = longbench.keys() <= datasets.keys()
            for name, config in datasets.items():
                _, first = known.setdefault(name, ("" if extends else data, config))
                if first != config:
                    raise LazyBenchError(f"data={data} and another data config differ in {name!r}: rename it in one")
    return known


def _read(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the lines of a file: the title of the row in a report, else empty; the location, and the line."""
    if path.suffix != ".csv":
        with path.open("rb") as file:
            yield from (("", where, line) for where, line in parse(file, path))
        return
    try:
        table = read_records(path)[[*_REPORTED]]
        table = table[table["answers"] != ""]  # without references there is no score
        for number, line in enumerate(table.to_dict("records"), start=1):
            line |= {key: json.loads(line[key] or "null") for key in ("answers", "all_classes")}
            line |= {"length": None if pd.isna(line["length"]) else int(line["length"])}
            title = f"{line['model']}, {line['data']}: {line['label']} ({line['conditions']})\n\n"
            yield title, f"{path}: record {number}", line
    except (ValueError, KeyError) as error:
        raise LazyBenchError(f"{path}: not the records.csv of a report: {first_line(error)}") from error


def _score(line: Mapping[str, Any], where: str, default: str, known: Known) -> dict[str, Any]:
    """Score a line, from 0 to 1; a run's record with several seeds has the mean over them.

    Returns:
        `dataset` and `_id`; LongBench's `score`, None for a failed record; `length` in words and `groups`, if the
        dataset has scores by group; and the scores by other metrics.
    """
    dataset = str(line.get("dataset") or default)
    if dataset not in known:
        hint = "" if line.get("dataset") else " (the line has no 'dataset': name it with --dataset NAME)"
        raise LazyBenchError(f"{where}: unknown dataset {dataset!r}: {suggest(dataset, known)}{hint}")
    scores = {"dataset": dataset, "_id": str(line.get("_id", "")), "score": None, "length": None, "groups": ""}
    if line.get("error"):
        return scores
    config, references = known[dataset][1], (line.get("answers"), line.get("all_classes"))
    predictions = [repeat.get("prediction", repeat.get("pred")) for repeat in line.get("repeats") or [line]]
    for prediction in predictions:
        if not isinstance(prediction, str):
            value = json.dumps(prediction, default=str)
            raise LazyBenchError(f"{where}: 'prediction' (or 'pred') must be a string, not {value:.60}")
    by_length = not LENGTHS.keys().isdisjoint(config.groups)
    fields = ["answers", "all_classes", *["length"] * by_length, *["groups"] * bool(config.groups)]
    if wrong := wrong_fields(line, fields):
        raise LazyBenchError(f"{where}: {wrong}")
    with prefix_errors(where, LazyBenchError):
        by_seed = [
            {"score": scoring.score(config, text, *references), **scoring.variants(config, text, *references)}
            for text in predictions
        ]
    means = {metric: fmean(seed[metric] for seed in by_seed) for metric in by_seed[0]}
    groups = {"length": line.get("length"), "groups": line.get("groups") or ""}
    return scores | means | (groups if config.groups else {})


def _refuse_mixed(answered: pd.DataFrame) -> None:
    """Raise `LazyBenchError` if a record has two answers, or a dataset without ids has two files."""
    is_first = ~answered.duplicated(["path", "dataset", "_id"])
    lines = answered[(answered["_id"] != "") | is_first]  # one line per file of those without ids
    for line in lines[lines.duplicated(["dataset", "_id"])].to_dict("records"):
        name = f"record {line['_id']} of {line['dataset']}" if line["_id"] else line["dataset"]
        raise LazyBenchError(f"{line['path']}: {name} is answered twice: score each model or method separately")


def _tables(answered: pd.DataFrame, known: Known) -> str:
    """Format mean scores, from 0 to 100, by dataset and by task, in the order of LongBench's table."""
    names = {*answered["dataset"]}
    groups = [group for name, (_, config) in known.items() if name in names for group in config.groups]
    scores = {"score": answered["score"], **{group: scores_in(group, answered) for group in groups}}
    metrics = [*answered.columns[len(_COLUMNS) :]]
    table = pd.DataFrame([(name, data, config.task) for name, (data, config) in known.items()])
    table.columns = ["dataset", "data", "task"]
    means = 100 * answered.assign(**scores).groupby("dataset")[[*scores, *metrics]].mean()
    datasets = table.merge(means, on="dataset")
    datasets["records"] = datasets["dataset"].map(answered["dataset"].value_counts())
    datasets["metrics"] = [
        ", ".join(f"{metric} {score:.2f}" for metric, score in row.dropna().items())
        for _, row in datasets[metrics].iterrows()
    ]
    by_task = datasets.groupby(["data", "task"], sort=False)
    tasks = by_task[[*scores]].agg(lambda means: means.mean(skipna=False))
    tasks["datasets"] = by_task.size().astype(str) + "/" + table.value_counts(["data", "task"]).astype(str)
    tasks["title"] = [f"{task} [data={data}]" if data else task for data, task in tasks.index]
    columns = [(name, name, "{:.2f}") for name in scores]
    dataset_columns = [("dataset", "dataset", "{}"), ("records", "records", "{}"), *columns, ("", "metrics", "{}")]
    task_columns = [("task", "title", "{}"), ("datasets", "datasets", "{}"), *columns]
    tables = [frame_table(datasets, dataset_columns)]
    return "\n\n".join(tables + ([] if tasks.empty else [frame_table(tasks, task_columns)]))
