"""RULER-6, generated: six of RULER's thirteen tasks, those that need no download.

The tasks are those of Hsieh et al. 2024 (arXiv 2404.06654), written anew after github.com/NVIDIA/RULER (Apache-2.0).
Its prompts stand in `conf/data/ruler.yaml`. The records are not RULER's own: they are drawn by another generator.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from random import Random
from string import ascii_lowercase, ascii_uppercase
from typing import Any
from uuid import UUID

from lazybench.data.facts import DatasetFacts, load_facts
from lazybench.data.record import Record
from lazybench.data.sample import Compose, Draft, Stream, branch, estimate_tokens, fit
from lazybench.errors import LazyBenchError, suggest

Draw = Callable[[Random], str]

RECORDS = 500
"""Records of a dataset, as many as RULER takes."""

_DEPTH = re.compile(r"\d+@([\d.]+)%")
_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_LEAST = 5  # lines of a text: RULER tries no fewer
_CHAIN = 5  # variables: RULER's four hops
_EXAMPLE = 500  # most tokens of an example of variable tracking
_COMMON = 10  # words that stand more often than others
_LONG = 4096  # prompts from here on repeat words more often
_LEAST_WORDS = 20  # different words of a list, as many as the shorter example has
_ALPHA = 2.0
_CODED = 3
_TOKENS_A_CODED_WORD = 50  # of a prompt, for each different coded word
# The fewest draws of coded words of which the third is more frequent than the fourth, as it is for any number above.
_LEAST_CODED = 53


def read(
    dataset: str,
    root: str | None,
    *,
    tokens: int,
    seed: int,
    depths: Sequence[float],
    datasets: Mapping[str, Any],
    prompt_tokens: Callable[[str, str], int] | None,
) -> Iterator[Record]:
    """The 500 generated records of `dataset`, in order.

    A record depends on (dataset, seed, its index, tokens, depths), on the dataset's facts and on the tokenizer, not on
    how many are taken. An index asks for the same at every length, where it can. All references of a record stand in
    one, a line each, as `metrics.string_match_all` takes them.

    Args:
        dataset: one of `DATASETS`.
        root: unused; generated records lie nowhere.
        tokens: RULER's `max_seq_length`: most tokens of a prompt, with all that goes around it, and its answer
            together. A record stays below by 5 %, 64 tokens or a line of its text at most, whichever is most.
        seed: another seed gives other records.
        depths: where the hidden line lies, or the first of several, in percent of the text's lines; the records take
            these in turn. Empty hides lines anywhere at random, as RULER does.
        datasets: facts by dataset, as a config gives them.
        prompt_tokens: the tokens of the whole prompt that a context and an input make; None estimates them.

    Raises:
        LazyBenchError: unknown dataset, or `tokens` too few for what a record must hold or too many for the words
            there are.
    """
    if dataset not in DATASETS:
        raise LazyBenchError(f"unknown dataset {dataset!r}: {suggest(dataset, DATASETS)}")
    facts = load_facts(datasets)[dataset]

    def estimated(context: str, query: str) -> int:
        return estimate_tokens((facts.prompt + facts.answer_prefix).format(context=context, input=query))

    asked = _Asked(facts, tokens, prompt_tokens or estimated)
    for index in range(RECORDS):
        yield _record(asked, index, Random(f"ruler/{dataset}/{seed}/{index}"), depths)


def depth_of(name: str) -> float | None:
    """Where the hidden line of a record lies, by the record's id, in percent of the text's lines.

    The line itself lies less than a line before that, of several lines the first less than five. None for the records
    of other data, and for those that hide no line.
    """
    found = _DEPTH.fullmatch(name)
    return float(found[1]) if found else None


@dataclass(frozen=True)
class _Asked:
    """The dataset's facts, most tokens of a prompt and its answer together, and what counts those of a prompt."""

    facts: DatasetFacts
    tokens: int
    prompt_tokens: Callable[[str, str], int]

    @property
    def room(self) -> int:
        """Most tokens of a prompt: what its answer, at its longest, leaves."""
        return self.tokens - self.facts.max_new_tokens

    def example(self, context: str, query: str, answer: str, end: str) -> str:
        """What to put before a text, so that its prompt begins with a solved example, and then goes on as ever.

        RULER puts the example's whole prompt before the record's own. A dataset's prompt has its instruction once: so
        the example takes that one, and the record's text gets another, behind `end`.
        """
        instruction, _, question = self.facts.prompt.partition("{context}")
        question = (question + self.facts.answer_prefix).format(input=query)
        return f"{context}{question} {answer}{end}{instruction.format(input=query)}"


def _record(asked: _Asked, index: int, rng: Random, depths: Sequence[float]) -> Record:
    dataset, name = asked.facts.name, str(index)
    if dataset in _HIDING:
        hide, lines = _HIDING[dataset]
        places = _places(branch(rng), lines, depths[index % len(depths)] / 100 if depths else None)
        name, compose = f"{index}@{round(100 * min(places), 1):g}%", hide(rng, asked, places)
    else:
        compose = _COUNTING[dataset](rng, asked)
    query = compose(0).input
    draft = fit(compose, asked.room, lambda context: asked.prompt_tokens(context, query))
    if draft is None:
        needed = asked.prompt_tokens(compose(0).context, query) + asked.facts.max_new_tokens
        raise LazyBenchError(
            f"record {index} of {dataset} needs data.tokens={needed} or more with this model, not {asked.tokens}"
        )
    answers = ("\n".join(draft.answers),)
    return Record(name, dataset, query, draft.context, answers, None, len(draft.context.split()))


def _places(rng: Random, lines: int, depth: float | None) -> list[float]:
    """Where lines are hidden (0 to 1): anywhere, or the first at `depth` and the others anywhere behind it."""
    if depth is None:
        return [rng.random() for _ in range(lines)]
    return [depth, *(rng.uniform(depth, 1) for _ in range(lines - 1))]


def _needle(
    rng: Random, _: _Asked, places: Sequence[float], key: Draw, value: Draw, kind: str, among: bool = False
) -> Compose:
    """A value under a key, in a text that says the same again and again, or `among` lines of the same form."""
    wanted, answer, others = key(rng), value(rng), branch(rng)

    def line() -> str:
        if not among:
            return _NOISE
        made = _NEEDLE.format(kind=kind, key=key(others), value=value(others))
        return line() if wanted in made or answer in made else made  # else there would be two answers

    hidden, lines = [_NEEDLE.format(kind=kind, key=wanted, value=answer)], Stream(line)
    return lambda count: Draft("\n".join(_hidden(hidden, lines.take(_LEAST + count), places)), (answer,), wanted)


def _variables(rng: Random, asked: _Asked, places: Sequence[float]) -> Compose:
    """A chain of variables of one value in a text that says the same again and again, after a solved example."""
    shorter, names = (_different(_letters(ascii_uppercase, length), branch(rng), _CHAIN) for length in (3, 5))
    shown, value = _different(lambda rng: str(rng.randrange(10_000, 99_999)), rng, 2)
    layout = [rng.random() for _ in range(_CHAIN)]

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
    """The lines with the needles in their order, each before a line of its own, of which there are at least as many."""
    free = list(range(len(lines)))
    before = sorted(free.pop(min(int(place * len(free)), len(free) - 1)) for place in places)
    hidden = list(lines)
    for index, needle in reversed(list(zip(before, needles, strict=True))):
        hidden.insert(index, needle)
    return hidden


def _common_words(rng: Random, asked: _Asked) -> Compose:
    """A numbered list in which ten words stand more often than the others, after a solved example."""
    words = sorted({word for kind in ("noun", "adjective", "verb") for word in _listed(kind)})
    long = asked.tokens >= _LONG
    shown = rng.sample(words, 40 if long else 20)
    solved = " ".join(f"{place}. {word}" for place, word in enumerate(shown[:_COMMON], start=1))
    before = asked.example(_numbered(shown, (10, 3) if long else (3, 1), branch(rng)), "", solved, "\n")
    order, seed = rng.sample(words, len(words)), rng.getrandbits(64)

    def compose(count: int) -> Draft:
        taken = order[: _LEAST_WORDS + count]
        if len(taken) < _LEAST_WORDS + count:
            raise LazyBenchError(f"data.tokens={asked.tokens}: cwe has too few words for so long a list: {len(order)}")
        context = _numbered(taken, (30, 3) if long else (6, 1), Random(seed))
        return Draft(before + context, tuple(taken[:_COMMON]))

    return compose


def _numbered(words: list[str], repeats: tuple[int, int], rng: Random) -> str:
    """A shuffled, numbered list: the first words as often as the first number says, the others as the second."""
    often, seldom = repeats
    repeated = words[:_COMMON] * often + words[_COMMON:] * seldom
    rng.shuffle(repeated)
    return " ".join(f"{place}. {word}" for place, word in enumerate(repeated, start=1))


def _coded_words(rng: Random, asked: _Asked) -> Compose:
    """Coded words, each less frequent than the one before, by a zeta distribution; the first is dots, and no word."""
    from scipy.special import zeta

    size = max(_CODED + 2, asked.room // _TOKENS_A_CODED_WORD)
    words = ["...", *_different(_letters(ascii_lowercase, 6), branch(rng), size - 1)]
    seed = rng.getrandbits(64)

    def compose(count: int) -> Draft:
        first = (_LEAST_CODED + count) / zeta(_ALPHA)
        repeated = [word for rank, word in enumerate(words, start=1) for _ in range(int(first * rank**-_ALPHA))]
        Random(seed).shuffle(repeated)
        return Draft(" ".join(repeated), tuple(words[1 : 1 + _CODED]))

    return compose


@cache
def _listed(kind: str) -> list[str]:
    """The `noun`s, `adjective`s or `verb`s of the package `wonderwords`, which RULER takes its words from, sorted."""
    from wonderwords import RandomWord

    return sorted(set(RandomWord().filter(include_categories=[kind])))


def _number(rng: Random) -> str:
    return str(rng.randint(10**6, 10**7 - 1))


def _word(rng: Random) -> str:
    return f"{rng.choice(_listed('adjective'))}-{rng.choice(_listed('noun'))}"


def _uuid(rng: Random) -> str:
    return str(UUID(int=rng.getrandbits(128), version=4))


def _letters(alphabet: str, length: int) -> Draw:
    return lambda rng: "".join(rng.choices(alphabet, k=length))


def _different(draw: Draw, rng: Random, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw(rng)] = None
    return list(found)


# What hides lines in a text, and how many.
_HIDING = {
    "niah_single_1": (partial(_needle, key=_word, value=_number, kind="numbers"), 1),
    "niah_multikey_2": (partial(_needle, key=_word, value=_number, kind="numbers", among=True), 1),
    "niah_multikey_3": (partial(_needle, key=_uuid, value=_uuid, kind="uuids", among=True), 1),
    "vt": (_variables, _CHAIN),
}
_COUNTING = {"cwe": _common_words, "fwe": _coded_words}
DATASETS = (*_HIDING, *_COUNTING)
