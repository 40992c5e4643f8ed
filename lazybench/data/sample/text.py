"""Turns templates and word banks into sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

from lazybench.data.sample.templates import GENRES
from lazybench.data.sample.words import BANKS, FIRST_NAMES

_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeioAEIO])")


def fill(template: str, rng: Random, values: Mapping[str, str] | None = None) -> str:
    """`template` with every slot filled: from `values` where it names the slot, else at random."""
    given = values or {}
    text = _SLOT.sub(lambda match: given.get(match[1]) or draw(match[1], rng), template)
    return _ARTICLE.sub(r"\1n ", text)


def draw(slot: str, rng: Random) -> str:
    """A random word or phrase for `slot`."""
    if slot == "number":
        return str(rng.randrange(12, 990))
    if slot == "small":
        return str(rng.randrange(2, 12))
    if slot == "year":
        return str(rng.randrange(1710, 1990))
    if slot in ("first", "second"):
        return rng.choice(FIRST_NAMES)
    return rng.choice(BANKS[slot])


def sentence(genre: str, rng: Random) -> str:
    """One filler sentence; it carries no fact that a question asks for."""
    return fill(rng.choice(GENRES[genre]), rng)
