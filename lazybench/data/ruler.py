"""RULER-6, generated: the six of RULER's thirteen tasks that need no download.

The tasks of Hsieh et al. 2024 (arXiv 2404.06654), written anew after github.com/NVIDIA/RULER (Apache-2.0); its prompts
are in `conf/data/ruler.yaml`. The records are not RULER's: another generator draws them.
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
from lazybench.data.sample import Compose, Draft, branch, estimate_tokens, fit, stream
from lazybench.errors import LazyBenchError

Draw = Callable[[Random], str]

RECORDS = 500
"""Records of a dataset, RULER's number."""

_DEPTH = re.compile(r"\d+@([\d.]+)%")
_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_MIN_LINES = 5  # of a text, as in RULER
_CHAIN = 5  # variables, for RULER's four hops
_MAX_EXAMPLE = 500  # tokens of an example of variable tracking
_COMMON = 10  # words that are more frequent than others
_LONG = 4096  # prompts from here on repeat words more often
_MIN_WORDS = 20  # distinct words of a list, as in the shorter example
_ALPHA = 2.0
_CODED = 3
_TOKENS_A_CODED_WORD = 50  # of a prompt, for each distinct coded word
# From this number of coded words on, the third is more frequent than the fourth.
_MIN_CODED = 53


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
    """Generate the 500 records of `dataset`, in order.

    A record depends on (dataset, seed, its index, tokens, depths), on the dataset's facts and on the tokenizer, not on
    the number of records. Its question is the same at every length, if possible. Its references are one text, a line
    each, as `metrics.string_match_all` takes them.

    Args:
        dataset: one of `DATASETS`.
        root: unused.
        tokens: RULER's `max_seq_length`: most tokens of a whole prompt and its answer together; `sample.fit` says how
            near to it records are.
        seed: of the records.
        depths: of the hidden line, or the first of several, in percent of the text's lines; the records take these in
            turn. Empty hides lines anywhere at random, as RULER does.
        datasets: facts by dataset, as a config gives them.
        prompt_tokens: counts the tokens of the prompt of a context and an input; None estimates them.

    Raises:
        LazyBenchError: `tokens` are too few for a record or too many for the words of a list.
    """
    facts = load_facts(datasets)[dataset]

    def estimated(context: str, query: str) -> int:
        return estimate_tokens((facts.prompt + facts.answer_prefix).format(context=context, input=query))

    spec = _Spec(facts, tokens, prompt_tokens or estimated)
    for index in range(RECORDS):
        yield _record(spec, index, Random(f"ruler/{dataset}/{seed}/{index}"), depths)


def depth_of(record_id: str) -> float | None:
    """Read the depth of a record's first hidden line from its id, in percent of the text's lines; None without one.

    The depth is exact to a line, or to five lines if several are hidden.
    """
    match = _DEPTH.fullmatch(record_id)
    return float(match[1]) if match else None


@dataclass(frozen=True)
class _Spec:
    """The requirements on the records of a dataset."""

    facts: DatasetFacts
    tokens: int  # most of a prompt and its answer together
    prompt_tokens: Callable[[str, str], int]  # counts the tokens of the prompt of a context and an input

    @property
    def max_prompt_tokens(self) -> int:
        """Most tokens of a prompt that leave room for the longest answer."""
        return self.tokens - self.facts.max_new_tokens

    def example(self, context: str, query: str, answer: str, end: str) -> str:
        """Return a solved example to put before a text, with the instruction between the two, after `end`.

        RULER puts the example's whole prompt before the record's own; here the dataset's prompt has the first one.
        """
        instruction, _, question = self.facts.prompt.partition("{context}")
        question = (question + self.facts.answer_prefix).format(input=query)
        return f"{context}{question} {answer}{end}{instruction.format(input=query)}"


def _record(spec: _Spec, index: int, rng: Random, depths: Sequence[float]) -> Record:
    dataset, record_id = spec.facts.name, str(index)
    if dataset in _COUNTING:
        compose = _COUNTING[dataset](rng, spec)
    else:
        hide, num_lines = _HIDING[dataset]
        draws = branch(rng)
        first = depths[index % len(depths)] / 100 if depths else draws.random()
        fractions = [first, *(draws.uniform(first if depths else 0, 1) for _ in range(num_lines - 1))]
        compose = hide(rng, spec, fractions)
        record_id = f"{index}@{round(100 * min(fractions), 1):g}%"
    query = compose(0).input
    draft = fit(compose, spec.max_prompt_tokens, lambda context: spec.prompt_tokens(context, query))
    if draft is None:
        needed = spec.prompt_tokens(compose(0).context, query) + spec.facts.max_new_tokens
        raise LazyBenchError(
            f"record {index} of {dataset} needs data.tokens={needed} or more with this model, not {spec.tokens}"
        )
    answers = ("\n".join(draft.answers),)
    return Record(record_id, dataset, query, draft.context, answers, None, len(draft.context.split()))


def _needle(rng: Random, _: _Spec, fractions: Sequence[float], key: str, value: str, among: bool = False) -> Compose:
    """Hide a value under a key, each one of `_DRAWS`, in a text that repeats itself or `among` lines of this form."""

    def needle(rng: Random) -> tuple[str, str, str]:
        query, answer = _DRAWS[key](rng), _DRAWS[value](rng)
        return query, answer, f"One of the special magic {value}s for {query} is: {answer}."

    def line() -> str:
        if not among:
            return _NOISE
        *_, other = needle(others)
        return line() if query in other or answer in other else other  # else there would be two answers

    query, answer, hidden = needle(rng)
    others, lines = branch(rng), stream(line)
    return lambda count: Draft("\n".join(_insert([hidden], lines(_MIN_LINES + count), fractions)), (answer,), query)


def _variables(rng: Random, spec: _Spec, fractions: Sequence[float]) -> Compose:
    """Hide a chain of variables of one value in a text that repeats itself, after a solved example."""
    shorter, names = (_distinct(_letters(ascii_uppercase, length), branch(rng), _CHAIN) for length in (3, 5))
    shown, value = _distinct(lambda rng: str(rng.randrange(10_000, 99_999)), rng, 2)
    example_fractions = [rng.random() for _ in range(_CHAIN)]

    def text(lines: int, names: list[str], value: str, fractions: Sequence[float]) -> str:
        chain = [f"VAR {names[0]} = {value}"]
        chain += [f"VAR {name} = VAR {before} " for before, name in pairwise(names)]
        return "\n".join(_insert(chain, [_NOISE] * (_MIN_LINES + lines), fractions))

    def example_draft(lines: int) -> Draft:
        return Draft(text(lines, shorter, shown, example_fractions), (), shown)

    example = fit(example_draft, _MAX_EXAMPLE, lambda context: spec.prompt_tokens(context, shown)) or example_draft(0)
    before = spec.example(example.context, shown, " ".join(shorter), "\n\n")
    return lambda lines: Draft(before + text(lines, names, value, fractions), tuple(names), value)


def _insert(needles: Sequence[str], lines: list[str], fractions: Sequence[float]) -> list[str]:
    """Insert the needles in order, each before another line; there must be at least as many lines."""
    free = list(range(len(lines)))
    indices = sorted(free.pop(min(int(fraction * len(free)), len(free) - 1)) for fraction in fractions)
    text = list(lines)
    for inserted, (index, needle) in enumerate(zip(indices, needles, strict=True)):
        text.insert(index + inserted, needle)
    return text


def _common_words(rng: Random, spec: _Spec) -> Compose:
    """Make a numbered list in which ten words are more frequent than the others, after a solved example."""
    words = sorted({word for kind in ("noun", "adjective", "verb") for word in _listed(kind)})
    long = spec.tokens >= _LONG
    shown = rng.sample(words, 40 if long else 20)
    solved = " ".join(f"{number}. {word}" for number, word in enumerate(shown[:_COMMON], start=1))
    before = spec.example(_numbered(shown, (10, 3) if long else (3, 1), branch(rng)), "", solved, "\n")
    order, seed = rng.sample(words, len(words)), rng.getrandbits(64)

    def compose(count: int) -> Draft:
        taken = order[: _MIN_WORDS + count]
        if len(taken) < _MIN_WORDS + count:
            raise LazyBenchError(f"data.tokens={spec.tokens}: cwe has too few words for so long a list: {len(order)}")
        context = _numbered(taken, (30, 3) if long else (6, 1), Random(seed))
        return Draft(before + context, tuple(taken[:_COMMON]))

    return compose


def _numbered(words: list[str], repeats: tuple[int, int], rng: Random) -> str:
    """Shuffle and number a list in which the first words are repeated by the first number, the others by the second."""
    often, seldom = repeats
    repeated = words[:_COMMON] * often + words[_COMMON:] * seldom
    rng.shuffle(repeated)
    return " ".join(f"{number}. {word}" for number, word in enumerate(repeated, start=1))


def _coded_words(rng: Random, spec: _Spec) -> Compose:
    """Repeat coded words by a zeta distribution, each less frequent than the one before; the first is dots, no word."""
    from scipy.special import zeta

    size = max(_CODED + 2, spec.max_prompt_tokens // _TOKENS_A_CODED_WORD)
    words = ["...", *_distinct(_letters(ascii_lowercase, 6), branch(rng), size - 1)]
    seed = rng.getrandbits(64)

    def compose(count: int) -> Draft:
        first = (_MIN_CODED + count) / zeta(_ALPHA)
        repeated = [word for rank, word in enumerate(words, start=1) for _ in range(int(first * rank**-_ALPHA))]
        Random(seed).shuffle(repeated)
        return Draft(" ".join(repeated), tuple(words[1 : 1 + _CODED]))

    return compose


@cache
def _listed(kind: str) -> list[str]:
    """List the `noun`s, `adjective`s or `verb`s of `wonderwords`, RULER's source of words, sorted."""
    from wonderwords import RandomWord

    return sorted(set(RandomWord().filter(include_categories=[kind])))


_DRAWS: dict[str, Draw] = {
    "number": lambda rng: str(rng.randint(10**6, 10**7 - 1)),
    "words": lambda rng: f"{rng.choice(_listed('adjective'))}-{rng.choice(_listed('noun'))}",
    "uuid": lambda rng: str(UUID(int=rng.getrandbits(128), version=4)),
}


def _letters(alphabet: str, length: int) -> Draw:
    return lambda rng: "".join(rng.choices(alphabet, k=length))


def _distinct(draw: Draw, rng: Random, count: int) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < count:
        words[draw(rng)] = None
    return list(words)


# The generator of each dataset with hidden lines, and their number.
_HIDING = {
    "niah_single_1": (partial(_needle, key="words", value="number"), 1),
    "niah_multikey_2": (partial(_needle, key="words", value="number", among=True), 1),
    "niah_multikey_3": (partial(_needle, key="uuid", value="uuid", among=True), 1),
    "vt": (_variables, _CHAIN),
}
_COUNTING = {"cwe": _common_words, "fwe": _coded_words}
DATASETS = (*_HIDING, *_COUNTING)
