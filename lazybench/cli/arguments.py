"""Reads a command's words with argparse; what is wrong with them is said in one line instead of a page of usage."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from lazybench.errors import LazyBenchError, suggest

BOTH_FORMS = "A flag with a value can also be written without dashes: --runs FOLDER is runs=FOLDER."


def read(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """What `parser` makes of `words`; a command that takes `--runs` takes `key=value` for `--key=value`.

    Raises:
        LazyBenchError: they are not what it takes.
    """

    def refuse(message: str) -> NoReturn:
        raise LazyBenchError(f"{message}: {parser.prog} --help shows what there is")

    parser.error = refuse
    if "--runs" in _flags(parser):
        keys = [name.lstrip("-") for name in _flags(parser) if name != "--help"]
        words = [f"--{word}" if "=" in word and word.partition("=")[0] in keys else word for word in words]
    given, unknown = parser.parse_known_args(words)
    if unknown:
        raise LazyBenchError(_unknown(unknown[0], parser))
    return given


def folder(text: str) -> Path:
    """For `add_argument(type=)`: a folder."""
    if not text:
        raise ArgumentTypeError("empty, give a folder")
    return Path(text)


def add_runs(parser: ArgumentParser, meaning: str) -> None:
    """Let a command take `--runs`, one folder or several with commas."""
    parser.add_argument(
        "--runs",
        metavar="FOLDER,...",
        type=lambda text: [Path(place) for place in text.split(",") if place] or [folder("")],
        default="results/runs",
        help=f"{meaning} (default: %(default)s)",
    )


def _flags(parser: ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def _for_hydra(parser: ArgumentParser) -> bool:
    """Whether the parser hands the settings on to Hydra."""
    return any(action.dest == "overrides" for action in parser._actions)


def _unknown(word: str, parser: ArgumentParser) -> str:
    """What is wrong with a word that the parser does not know."""
    key, equals, value = word.partition("=")
    bare, flags = key.lstrip("-"), _flags(parser)
    if word.startswith("-"):
        near = get_close_matches(key, flags, n=1)
        if _for_hydra(parser) and (equals or not near):
            return f"there is no flag {key!r}: settings stand without dashes, {bare}={value if equals else 'VALUE'}"
        return f"there is no flag {key!r}: {suggest(key, near or flags)}"
    names = [name.lstrip("-") for name in flags if name != "--help"]
    if equals:
        return f"unknown setting {key!r}: {suggest(key, names)}"
    if "runs" in names:
        meant = f"did you mean runs={word}?" if os.path.exists(word) else suggest(word, [f"{name}=" for name in names])
        return f"{word!r} is not key=value: {meant}"
    return f"{word!r} is one word too many: {parser.prog} --help shows what there is"
