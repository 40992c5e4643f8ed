"""Reads a command's words with argparse; what is wrong with them is said in one line instead of a page of usage."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lazybench.errors import LazyBenchError

BOTH_FORMS = "A flag with a value can also be written without dashes: --runs FOLDER is runs=FOLDER."


def read(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """What `parser` makes of `words`; a command that takes `--runs` takes `key=value` for `--key=value`.

    Raises:
        LazyBenchError: they are not what it takes.
    """

    def refuse(message: str) -> NoReturn:
        raise LazyBenchError(f"{message}: {parser.prog} --help shows what there is")

    parser.error = refuse
    if parser.get_default("runs") is not None:
        words = [f"--{word}" if "=" in word and not word.startswith("-") else word for word in words]
    return parser.parse_intermixed_args(words)


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
