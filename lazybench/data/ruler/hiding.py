"""Texts with lines hidden in them: RULER's needles in a haystack, and its chain of variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from string import ascii_uppercase

from lazybench.data.draft import Compose, Draft, Stream, branch, fit
from lazybench.data.ruler.asked import Asked
from lazybench.data.ruler.words import Draw, different, letters

Hide = Callable[[Random, Asked, Sequence[float]], Compose]
"""Makes a record from a random source, what is asked, and the places (0 to 1) of its hidden lines."""

CHAIN = 5
"""Variables of a chain: RULER's four hops."""

_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_LEAST = 5  # lines of a text: RULER tries no fewer
_EXAMPLE = 500  # most tokens of an example of variable tracking


def needle(key: Draw, value: Draw, kind: str, among: bool = False) -> Hide:
    """A value under a key, in a text that says the same again and again.

    Args:
        key: draws a key.
        value: draws a value.
        kind: what values are called.
        among: the text is lines of the same form instead, with other keys and values.
    """

    def hide(rng: Random, _: Asked, places: Sequence[float]) -> Compose:
        wanted, answer, others = key(rng), value(rng), branch(rng)

        def line() -> str:
            if not among:
                return _NOISE
            made = _NEEDLE.format(kind=kind, key=key(others), value=value(others))
            return line() if wanted in made or answer in made else made  # else there would be two answers

        hidden, lines = [_NEEDLE.format(kind=kind, key=wanted, value=answer)], Stream(line)
        return lambda count: Draft("\n".join(_hidden(hidden, lines.take(_LEAST + count), places)), (answer,), wanted)

    return hide


def variables(rng: Random, asked: Asked, places: Sequence[float]) -> Compose:
    """A chain of variables of one value in a text that says the same again and again, after a solved example."""
    shorter, names = (different(letters(ascii_uppercase, length), branch(rng), CHAIN) for length in (3, 5))
    shown, value = different(lambda rng: str(rng.randrange(10_000, 99_999)), rng, 2)
    layout = [rng.random() for _ in range(CHAIN)]

    def text(lines: int, names: list[str], value: str, places: Sequence[float]) -> str:
        chain = [f"VAR {names[0]} = {value}"]
        chain += [f"VAR {name} = VAR {before} " for before, name in pairwise(names)]
        return "\n".join(_hidden(chain, [_NOISE] * (_LEAST + lines), places))

    def of_example(lines: int) -> Draft:
        return Draft(text(lines, shorter, shown, layout), (), shown)

    example = fit(of_example, _EXAMPLE, lambda context: asked.prompt_tokens(context, shown)) or of_example(0)
    before = asked.example(example.context, shown, " ".join(shorter), "\n\n")
    return lambda lines: Draft(before + text(lines, names, value, places), tuple(names), value)


def _hidden(needles: Sequence[str], lines: list[str], places: Sequence[float]) -> list[str]:
    """The lines with the needles in their order, each before a line of its own.

    Args:
        needles: what to hide.
        lines: the text's lines, at least as many.
        places: as many as needles, 0 to 1. If they are random, every choice of lines is as likely as any other.
    """
    free = list(range(len(lines)))
    before = sorted(free.pop(min(int(place * len(free)), len(free) - 1)) for place in places)
    hidden = list(lines)
    for index, needle in reversed(list(zip(before, needles, strict=True))):
        hidden.insert(index, needle)
    return hidden
