"""Words and numbers to hide or to count, by RULER's lists and forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from uuid import UUID

from lazybench.errors import LazyBenchError

Draw = Callable[[Random], str]


@cache
def listed(kind: str) -> list[str]:
    """The `noun`s, `adjective`s or `verb`s of the package `wonderwords`, which RULER takes its words from, sorted.

    Raises:
        LazyBenchError: the package is not installed.
    """
    try:
        from wonderwords import RandomWord
    except ModuleNotFoundError as error:
        raise LazyBenchError(
            "RULER-6 takes its words from the package 'wonderwords', which is not installed: pip install wonderwords"
        ) from error
    return sorted(set(RandomWord().filter(include_categories=[kind])))


def number(rng: Random) -> str:
    """Seven digits."""
    return str(rng.randint(10**6, 10**7 - 1))


def word(rng: Random) -> str:
    """An adjective and a noun, joined by a hyphen."""
    return f"{rng.choice(listed('adjective'))}-{rng.choice(listed('noun'))}"


def uuid(rng: Random) -> str:
    """A random UUID."""
    return str(UUID(int=rng.getrandbits(128), version=4))


def letters(alphabet: str, length: int) -> Draw:
    """What draws that many letters of an alphabet."""
    return lambda rng: "".join(rng.choices(alphabet, k=length))


def different(draw: Draw, rng: Random, count: int) -> list[str]:
    """`count` of what `draw` gives, no two the same."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw(rng)] = None
    return list(found)
