"""Reads flags: what is wrong with them is said in one line instead of argparse's usage."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from lazybench.errors import LazyBenchError


def read_arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """What `parser` makes of `words`.

    Raises:
        LazyBenchError: they are not what it takes.
    """

    def refuse(message: str) -> NoReturn:
        raise LazyBenchError(f"{message}: {parser.prog} --help shows what there is")

    parser.error = refuse
    known, unknown = parser.parse_known_args(words)
    if unknown:
        raise LazyBenchError(_unknown(unknown[0], parser))
    return known


def _unknown(word: str, parser: ArgumentParser) -> str:
    flag, equals, value = word.partition("=")
    if not word.startswith("-"):
        return f"{word!r} is one word too many: {parser.prog} --help shows what there is"
    takes_settings = any(action.dest == "overrides" for action in parser._actions)
    if equals and takes_settings:
        return f"there is no flag {flag!r}: settings stand without dashes, {flag.lstrip('-')}={value}"
    flags = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    near = get_close_matches(flag, flags, n=1)
    if near:
        return f"there is no flag {flag!r}: did you mean {near[0]!r}?"
    settings = f"settings stand without dashes, {flag.lstrip('-')}=VALUE; " if takes_settings else ""
    return f"there is no flag {flag!r}: {settings}{parser.prog} --help shows what there is"
