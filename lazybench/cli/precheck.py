"""Refuses words that Hydra would answer with a page, a traceback or silence, before it reads them."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from itertools import pairwise

from hydra._internal.utils import get_args_parser

from lazybench.cli.arguments import read
from lazybench.cli.configs import names_in
from lazybench.data.facts import load_facts, task_choices
from lazybench.errors import LazyBenchError, suggest

_GROUPS = ("method", "model", "data", "experiment")
_SETTING = re.compile(r"\+{0,2}(?P<key>[\w$@:-]+([./][\w$@:-]+)*)=", re.ASCII)
_STAGE = re.compile(r"(?P<layer>\d+(?:\.\d+)?)(?P<unit>%?):[\d.]+", re.ASCII)


def check(program: str, words: Sequence[str]) -> Namespace:
    """What Hydra reads in the words.

    Raises:
        LazyBenchError: flags and words that Hydra would answer with a page, a traceback or silence.
    """
    parser = get_args_parser()
    parser.prog = program
    given = read(parser, words)
    for flag in ("experimental_rerun", "package"):
        if getattr(given, flag) is not None:
            raise LazyBenchError(f"--{flag.replace('_', '-')} is not supported")
    for word in [] if given.shell_completion else given.overrides:
        found = _SETTING.match(word)
        if word.startswith("~"):
            raise LazyBenchError(f"{word} takes a setting away, and every one is needed: give it a value")
        if found is None:
            raise LazyBenchError(f"{word!r} is not key=value: {_meant(word.lstrip('+'))}")
        key, value = found["key"], word[found.end() :]
        if key in _GROUPS and value.startswith("["):
            raise LazyBenchError(f"{word} is a list: choose one; -m makes a run of each of several, {key}=A,B")
        if key in _GROUPS and not word.startswith("+") and re.fullmatch(r"null|true|false|[-+\d.e]+", value.lower()):
            raise LazyBenchError(f"{word} is no name: {suggest(value, names_in(key))}")
        if key in ("experiment", "cluster") and not word.startswith("+"):
            raise LazyBenchError(f"{key} comes on top of the settings: write +{word}")
        if key == "cluster" and not (given.multirun or given.cfg or given.info or given.help):
            raise LazyBenchError(f"{word} is where the jobs of a sweep run: add -m, also for a single one")
    return given


def _meant(word: str) -> str:
    """What may be meant by a word without a value."""
    group = next((group for group in _GROUPS if word in names_in(group)), None)
    if group is None and word in task_choices(load_facts()):
        group = "task"
    return f"did you mean {group}={word}?" if group else "write a setting and its value, such as task=code"


def one_or_several(word: str) -> str | None:
    """What to ask about stages that may be one schedule, while Hydra takes them for several; None for other words."""
    key, _, value = word.partition("=")
    stages = [_STAGE.fullmatch(part.strip()) for part in value.split(",")]
    if key.lstrip("+") != "method.schedule" or len(stages) < 2 or not all(stages):
        return None
    for unit in ("", "%"):
        layers = [float(stage["layer"]) for stage in stages if stage["unit"] == unit]
        if any(after <= before for before, after in pairwise(layers)):
            return None  # layers increase in a schedule
    several = ",".join(f"[{stage.group()}]" for stage in stages)
    return (
        f"{word} may be one schedule of {len(stages)} stages, '{key}=[{value}]', or a sweep over {len(stages)} "
        f"schedules, -m '{key}={several}': write which"
    )
