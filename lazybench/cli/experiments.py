"""Lets settings given on the command line take the place of what an experiment sweeps over."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from lazybench.config import CONF


def settle(words: Sequence[str]) -> list[str]:
    """A command line on which what is given replaces what the named experiment sweeps over.

    Hydra would take both, and call it a conflict.
    """
    given = {word.partition("=")[0] for word in words}
    for swept in _experiments(words):
        if given & swept.keys():
            rest = [f"{key}={values}" for key, values in swept.items() if key not in given]
            return [*words, "hydra.sweeper.params=null", *rest]
    return list(words)


def swept_by_experiments(words: Sequence[str]) -> set[str]:
    """The settings that the experiments on a command line sweep over."""
    return {key for swept in _experiments(words) for key in swept}


def _experiments(words: Sequence[str]) -> Iterator[dict[str, str]]:
    """What each experiment on a command line sweeps over."""
    for word in words:
        if word.lstrip("+").startswith("experiment="):
            # The order in which Hydra looks for it.
            yield _swept(word.partition("=")[2], [CONF, *_config_dirs(words)])


def _config_dirs(words: Sequence[str]) -> list[Path]:
    """The folders of configs that a command line names."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--config-dir", "-cd", type=Path)
    try:
        place = parser.parse_known_args(words)[0].config_dir
    except argparse.ArgumentError:
        return []  # what is wrong with a flag is said where all of them are read
    return [] if place is None else [place]


def _swept(experiment: str, places: Sequence[Path]) -> dict[str, str]:
    """What an experiment sweeps over: values by setting."""
    path = next((path for place in places if (path := place / "experiment" / f"{experiment}.yaml").is_file()), None)
    try:
        found: Any = yaml.safe_load(path.read_text("utf-8")) if path else None
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # Hydra says what is wrong with it
    for key in ("hydra", "sweeper", "params"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
