"""What there is in LazyBench's folder of configs, and in the user's own."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from lazybench.config import CONF, SOURCES
from lazybench.data import DatasetFacts, load_facts
from lazybench.errors import LazyBenchError, first_line

GROUPS = ("method", "model", "data")


@cache
def names_in(group: str) -> list[str]:
    """What there is to choose in a config group of LazyBench's."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def add_config_dir(parser: ArgumentParser, purpose: str) -> None:
    """Let a command take `--config-dir`; `purpose` says what it does with the folders."""
    parser.add_argument(
        "--config-dir",
        "-cd",
        metavar="FOLDER",
        type=_config_dir,
        action="append",
        default=[],
        help=f"{purpose}; may be given several times",
    )


def _config_dir(text: str) -> Path:
    place = Path(text)
    if not any((place / group).is_dir() for group in (*GROUPS, "experiment", "cluster")):
        raise LazyBenchError(f"--config-dir: {place} has no folder method, model or data with a YAML file for each")
    return place


def own_datasets(place: Path) -> Iterator[tuple[str, dict[str, DatasetFacts]]]:
    """The data configs of a folder that name datasets of their own: what `data=` calls it, and facts by dataset.

    LongBench's are among the facts, unless the records come from a source of their own.

    Raises:
        LazyBenchError: a config cannot be read, or its facts are wrong.
    """
    for path in sorted((place / "data").rglob("*.yaml")):
        try:
            config = yaml.safe_load(path.read_text("utf-8")) or {}
            if not (datasets := config.get("datasets")):
                continue
            facts = load_facts(datasets)
        except (OSError, ValueError, AttributeError, yaml.YAMLError, LazyBenchError) as error:
            raise LazyBenchError(f"{path}: {first_line(error)}") from error
        if config.get("source", "longbench") not in SOURCES:
            facts = {name: facts[name] for name in datasets}
        yield config_name(path, place / "data"), facts


def config_name(path: Path, group: Path) -> str:
    """What a command calls the config in a file of the folder `group`."""
    return path.relative_to(group).with_suffix("").as_posix()
