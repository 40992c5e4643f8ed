"""Lists of words to count: RULER's common words and its frequent coded words."""

from __future__ import annotations

from random import Random
from string import ascii_lowercase

from scipy.special import zeta

from lazybench.data.draft import Compose, Draft, branch
from lazybench.data.ruler.asked import Asked
from lazybench.data.ruler.words import different, letters, listed
from lazybench.errors import LazyBenchError

_COMMON = 10
_LONG = 4096  # prompts from here on repeat words more often
_LEAST_WORDS = 20  # different words of a list, as many as the shorter example has
_ALPHA = 2.0
_CODED = 3
_TOKENS_A_CODED_WORD = 50  # of a prompt, for each different coded word
# The fewest draws of coded words of which the third is more frequent than the fourth, as it is for any number above.
_LEAST_CODED = 53


def common_words(rng: Random, asked: Asked) -> Compose:
    """A numbered list in which ten words stand more often than the others, after a solved example."""
    words = sorted({word for kind in ("noun", "adjective", "verb") for word in listed(kind)})
    long = asked.tokens >= _LONG
    shown = rng.sample(words, 40 if long else 20)
    solved = " ".join(f"{place}. {word}" for place, word in enumerate(shown[:_COMMON], start=1))
    before = asked.example(_numbered(shown, (10, 3) if long else (3, 1), branch(rng)), "", solved, "\n")
    order, seed = rng.sample(words, len(words)), rng.getrandbits(64)

    def compose(count: int) -> Draft:
        taken = order[: _LEAST_WORDS + count]
        if len(taken) < _LEAST_WORDS + count:
            raise LazyBenchError(
                f"data.tokens={asked.tokens}: cwe has too few words for a list so long: it has {len(order)}"
            )
        context = _numbered(taken, (30, 3) if long else (6, 1), Random(seed))
        return Draft(before + context, tuple(taken[:_COMMON]))

    return compose


def frequent_words(rng: Random, asked: Asked) -> Compose:
    """Coded words, each less frequent than the one before, by a zeta distribution; the first is dots, and no word."""
    size = max(_CODED + 2, asked.room // _TOKENS_A_CODED_WORD)
    words = ["...", *different(letters(ascii_lowercase, 6), branch(rng), size - 1)]
    seed = rng.getrandbits(64)

    def compose(count: int) -> Draft:
        first = (_LEAST_CODED + count) / zeta(_ALPHA)
        repeated = [word for rank, word in enumerate(words, start=1) for _ in range(int(first * rank**-_ALPHA))]
        Random(seed).shuffle(repeated)
        return Draft(" ".join(repeated), tuple(words[1 : 1 + _CODED]))

    return compose


def _numbered(words: list[str], repeats: tuple[int, int], rng: Random) -> str:
    """A shuffled, numbered list: the first words as often as the first number says, the others as the second."""
    often, seldom = repeats
    repeated = words[:_COMMON] * often + words[_COMMON:] * seldom
    rng.shuffle(repeated)
    return " ".join(f"{place}. {word}" for place, word in enumerate(repeated, start=1))
