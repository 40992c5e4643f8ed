"""`lazybench list`: what there is to choose from."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lazybench.cli.arguments import read_arguments
from lazybench.config import CONF
from lazybench.data import facts
from lazybench.data.facts import DatasetFacts
from lazybench.errors import LazyBenchError, first_line

_GROUPS = ("method", "model", "data")
# What else a folder of configs may hold.
_OTHERS = ("experiment", "cluster")


@dataclass(frozen=True)
class _Data:
    """A data config of the user's that has datasets of its own.

    Attributes:
        name: what `data=` takes.
        place: the folder of configs that it comes from.
        datasets: facts of its own datasets.
        tasks: all the datasets that each task stands for on it, for the tasks that these datasets belong to.
    """

    name: str
    place: Path
    datasets: dict[str, DatasetFacts]
    tasks: dict[str, list[str]]


def main(argv: Sequence[str]) -> int:
    """Print methods, models, data, tasks and datasets: LazyBench's, then those of the folders given.

    Raises:
        LazyBenchError: a folder has no configs, or one of its data configs cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="lazybench list", description="Methods, models, data, tasks and datasets to choose from."
    )
    parser.add_argument(
        "--config-dir",
        "-cd",
        metavar="FOLDER",
        type=Path,
        action="append",
        default=[],
        help="also list those of FOLDER, which run takes with the same flag; may be given several times",
    )
    places = read_arguments(parser, argv).config_dir
    for place in places:
        _check(place)
    own = [data for place in places for data in _own_data(place)]
    for group in _GROUPS:
        print(f"{group}:")
        for path in sorted((CONF / group).glob("*.yaml")):
            print(_line(path.stem, _first_comment(path)))
        for place in places:
            for path in _files(place, group):
                name = _name(path, place / group)
                hidden = ", hidden by LazyBench's own" if (CONF / group / f"{name}.yaml").is_file() else ""
                print(_line(name, _first_comment(path), f"{place}{hidden}"))
    known = facts.load_facts()
    print("task:")
    print(_line(facts.ALL, "all 16 English datasets; of a folder or archive, those that it has, yours among them"))
    for task in facts.tasks():
        print(_line(task, ", ".join(facts.datasets_of(task, known))))
    for data in own:
        for task, names in data.tasks.items():
            print(_line(task, ", ".join(names), f"data={data.name}, {data.place}"))
    print("dataset:")
    for name in facts.english():
        print(_line(name, _about(known[name])))
    for data in own:
        for name, about in data.datasets.items():
            print(_line(name, _about(about), f"data={data.name}, {data.place}"))
    return 0


def _line(name: str, about: str, source: str = "") -> str:
    """One choice; `source` says where it comes from if it is not LazyBench's."""
    return f"  {name:<25} {about}{f'  [{source}]' if source else ''}".rstrip()


def _about(dataset: DatasetFacts) -> str:
    records = "" if dataset.records is None else f"{dataset.records} records, "
    task = "" if dataset.task in facts.tasks() or dataset.task is None else f", task {dataset.task}"
    return f"{records}{dataset.metric}, at most {dataset.max_new_tokens} new tokens{task}"


def _check(place: Path) -> None:
    if not place.is_dir():
        raise LazyBenchError(f"--config-dir: no such folder: {place}")
    if not any((place / group).is_dir() for group in (*_GROUPS, *_OTHERS)):
        raise LazyBenchError(f"--config-dir: {place} has no method/, model/ or data/ in it, with a YAML file for each")


def _files(place: Path, group: str) -> list[Path]:
    return sorted((place / group).rglob("*.yaml"))


def _name(path: Path, group: Path) -> str:
    """What a command calls the config in a file."""
    return path.relative_to(group).with_suffix("").as_posix()


def _own_data(place: Path) -> Iterator[_Data]:
    """The data configs of a folder that have datasets of their own."""
    for path in _files(place, "data"):
        try:
            config = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise LazyBenchError(f"{path}: cannot be read: {first_line(error)}") from error
        datasets = config.get("datasets") if isinstance(config, dict) else None
        if datasets:
            yield _data(path, place, datasets)


def _data(path: Path, place: Path, datasets: Any) -> _Data:
    if not isinstance(datasets, Mapping):
        raise LazyBenchError(f"{path}: datasets must be facts by dataset, not {type(datasets).__name__}")
    try:
        known = facts.load_facts(datasets)
    except LazyBenchError as error:
        raise LazyBenchError(f"{path}: {error}") from error
    own = {name: known[name] for name in datasets}
    tasks = dict.fromkeys(of.task for of in own.values() if of.task is not None)
    return _Data(_name(path, place / "data"), place, own, {task: facts.datasets_of(task, known) for task in tasks})


def _first_comment(path: Path) -> str:
    first = path.read_text("utf-8", errors="replace").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
