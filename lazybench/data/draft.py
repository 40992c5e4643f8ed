"""A generated record before it is one, and how its length is fitted to a number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")

Compose = Callable[[int], "Draft"]
"""The record with `n` units of filler: sentences, examples or a few lines of code, each below 64 tokens."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The fields of a record that a generator decides."""

    context: str
    answers: tuple[str, ...]
    input: str = ""


class Stream(Generic[T]):
    """An endless list that is made on demand, so that a longer record begins with the shorter one's parts."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []

    def take(self, n: int) -> list[T]:
        """The first `n` parts."""
        while len(self._made) < n:
            self._made.append(self._make())
        return self._made[:n]


def branch(rng: Random) -> Random:
    """A random source for one stream, so that streams do not depend on the order they are read in."""
    return Random(rng.getrandbits(64))


def estimate_tokens(text: str) -> int:
    """Length in tokens where no tokenizer is at hand: four characters a token, rounded up."""
    return -(-len(text) // 4)


def fit(compose: Compose, tokens: int, count: Callable[[str], int]) -> Draft | None:
    """The draft whose context is at most `tokens` long and near it; None when even `compose(0)` is longer.

    It stays below by 5 % of `tokens` or 64 of them at most, whichever is more, or by one unit where that is longer.
    Whole contexts are counted, for a tokenizer may merge across units; each guess comes from the measured
    size of a unit, so a handful of counts is enough at any length.
    """
    slack = max(64, tokens // 20)
    best = compose(0)
    low, size = 0, count(best.context)
    if size > tokens:
        return None
    high: int | None = None
    unit = 20.0
    # Aiming a little below the target makes the first guess that fits good enough.
    aim = tokens - slack // 4
    while tokens - size > slack // 2 and high != low + 1:
        guess = max(low + 1, low + int((aim - size) / unit))
        if high is not None:
            guess = min(guess, high - 1)
        draft = compose(guess)
        measured = count(draft.context)
        unit = max(1.0, (measured - size) / (guess - low))
        if measured <= tokens:
            best, low, size = draft, guess, measured
        else:
            high = guess
    return best
