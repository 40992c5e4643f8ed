"""Flags that several commands share, read with argparse, whose errors become one line."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import yaml

from lazybench.config import SOURCES
from lazybench.data import DatasetConfig, load_dataset_configs
from lazybench.errors import LazyBenchError, first_line

BOTH_FORMS = "A flag with a value can also be written without dashes: --runs FOLDER is runs=FOLDER."
GROUPS = ("method", "model", "data")


def read(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """Parse `words`; a parser with `--runs` also accepts `key=value` for `--key=value`."""

    def refuse(message: str) -> NoReturn:
        raise LazyBenchError(f"{message}: {parser.prog} --help lists the arguments")

    parser.error = refuse
    if parser.get_default("runs") is not None:
        words = [
            f"--{word}" if re.match("[^-][^=]*=", word) and not re.fullmatch("--[^=]+", before) else word
            for before, word in pairwise(["", *words])  # the value of a flag stays as it is
        ]
    return parser.parse_intermixed_args(words)


def add_runs(parser: ArgumentParser, meaning: str) -> None:
    """Add `--runs`, one output folder or several with commas."""

    def folders(text: str) -> list[Path]:
        return [Path(name.strip()) for name in text.split(",")]

    text = f"{meaning} (default: %(default)s)"
    parser.add_argument("--runs", metavar="FOLDER,...", type=folders, default="results/runs", help=text)


def add_config_dir(parser: ArgumentParser, purpose: str) -> None:
    """Add `--config-dir`, a folder of the user's own configs; `purpose` is its help."""
    text = f"{purpose}; may be given several times"
    parser.add_argument("--config-dir", "-cd", metavar="FOLDER", type=Path, action="append", default=[], help=text)


def own_datasets(folder: Path) -> Iterator[tuple[str, dict[str, DatasetConfig]]]:
    """Yield the data configs of a folder that name datasets of their own, each with the configs of its datasets.

    LongBench's datasets are among them, unless the records come from a function.
    """
    for path in sorted((folder / "data").rglob("*.yaml")):
        try:
            config = yaml.safe_load(path.read_text("utf-8")) or {}
            configs = load_dataset_configs(datasets := config.get("datasets") or {})
        except (yaml.YAMLError, LazyBenchError) as error:
            raise LazyBenchError(f"{path}: {first_line(error)}") from error
        if config.get("source", "longbench") not in SOURCES:
            configs = {name: configs[name] for name in datasets}
        if datasets:
            yield config_name(path, folder / "data"), configs


def config_name(path: Path, group: Path) -> str:
    """Return the name of the config in a file of the folder `group`, as commands take it."""
    return path.relative_to(group).with_suffix("").as_posix()
