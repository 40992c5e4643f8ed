"""What a dataset's generator returns, and how its length is fitted to a token budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

Compose = Callable[[int], "Draft"]
"""The record with `n` units of filler: sentences, turns or a few lines of code, each below 64 tokens."""

Maker = Callable[[Random, float], Compose]
"""A dataset's generator: takes a random source and where in the context (0..1) the evidence goes."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The fields of a record that a generator decides."""

    context: str
    answers: tuple[str, ...]
    input: str = ""
    all_classes: tuple[str, ...] | None = None


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


def slack(tokens: int) -> int:
    """How many tokens a context may stay below its target: 5 % of it, at least 64."""
    return max(64, tokens // 20)


def fit(compose: Compose, tokens: int, count: Callable[[str], int]) -> Draft | None:
    """The draft whose context is at most `tokens` long and near it; None when even `compose(0)` is longer.

    Whole contexts are counted, for a tokenizer may merge across units; each guess comes from the measured
    size of a unit, so a handful of counts is enough at any length.
    """
    best = compose(0)
    low, size = 0, count(best.context)
    if size > tokens:
        return None
    high: int | None = None
    unit = 20.0
    # Aiming a little below the target makes the first guess that fits good enough.
    aim = tokens - slack(tokens) // 4
    while tokens - size > slack(tokens) // 2 and high != low + 1:
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


def insert_at(parts: list[T], position: float, part: T) -> list[T]:
    """`parts` with `part` put in at the fraction `position` of them."""
    index = int(position * (len(parts) + 1))
    return [*parts[:index], part, *parts[index:]]


def split_evenly(parts: list[T], groups: int) -> list[list[T]]:
    """`parts` in order, cut into `groups` runs whose sizes differ by one at most."""
    return [parts[i * len(parts) // groups : (i + 1) * len(parts) // groups] for i in range(groups)]


def grouped(n: int, heads: Stream[T], fillers: Stream[U], extra: int) -> list[tuple[T, list[U]]]:
    """`n` units dealt out in order: a head, up to `extra` fillers that go with it, then the next head."""
    count = -(-n // (extra + 1))
    rest = fillers.take(n - count)
    return [(head, rest[i * extra : (i + 1) * extra]) for i, head in enumerate(heads.take(count))]
