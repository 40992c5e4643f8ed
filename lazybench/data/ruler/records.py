"""Makes the records of a dataset, as long as asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from lazybench.data.draft import branch, estimate_tokens, fit
from lazybench.data.facts import load_facts
from lazybench.data.record import Record
from lazybench.data.ruler.asked import Asked
from lazybench.data.ruler.counting import common_words, frequent_words
from lazybench.data.ruler.hiding import CHAIN, needle, variables
from lazybench.data.ruler.words import number, uuid, word
from lazybench.errors import LazyBenchError, suggest

RECORDS = 500
"""Records of a dataset, as many as RULER takes."""

# What hides lines in a text, and how many.
_HIDING = {
    "niah_single_1": (needle(word, number, "numbers"), 1),
    "niah_multikey_2": (needle(word, number, "numbers", among=True), 1),
    "niah_multikey_3": (needle(uuid, uuid, "uuids", among=True), 1),
    "vt": (variables, CHAIN),
}
_COUNTING = {"cwe": common_words, "fwe": frequent_words}
DATASETS = (*_HIDING, *_COUNTING)
_DEPTH = re.compile(r"\d+@([\d.]+)%")


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
        root: None; generated records lie nowhere.
        tokens: RULER's `max_seq_length`: most tokens of a prompt, with all that goes around it, and its answer
            together. A record stays below by 5 %, 64 tokens or a line of its text at most, whichever is most.
        seed: another seed gives other records.
        depths: where the hidden line lies, or the first of several, in percent of the text's lines; the records take
            these in turn. Empty hides lines anywhere at random, as RULER does.
        datasets: facts by dataset, as a config gives them.
        prompt_tokens: the tokens of the whole prompt that a context and an input make; None estimates them.

    Raises:
        LazyBenchError: unknown dataset, a `root`, `tokens` too few for what a record must hold or too many for the
            words there are, or the package `wonderwords` is not installed.
    """
    if dataset not in DATASETS:
        raise LazyBenchError(f"unknown dataset {dataset!r}: {suggest(dataset, DATASETS)}")
    if root is not None:
        raise LazyBenchError(f"data.root={root}: the records of RULER-6 are generated: leave data.root out")
    facts = load_facts(datasets)[dataset]

    def estimated(context: str, query: str) -> int:
        return estimate_tokens((facts.prompt + facts.answer_prefix).format(context=context, input=query))

    asked = Asked(facts, tokens, prompt_tokens or estimated)
    for index in range(RECORDS):
        yield _record(asked, index, Random(f"ruler/{dataset}/{seed}/{index}"), depths)


def depth_of(name: str) -> float | None:
    """Where the hidden line of a record lies, by the record's id, in percent of the text's lines.

    The line itself lies less than a line before that, of several lines the first less than five. None for the records
    of other data, and for those that hide no line.
    """
    found = _DEPTH.fullmatch(name)
    return float(found[1]) if found else None


def _record(asked: Asked, index: int, rng: Random, depths: Sequence[float]) -> Record:
    dataset = asked.facts.name
    if dataset in _HIDING:
        hide, lines = _HIDING[dataset]
        places = _places(branch(rng), lines, depths[index % len(depths)] / 100 if depths else None)
        name, compose = f"{index}@{round(100 * min(places), 1):g}%", hide(rng, asked, places)
    else:
        name, compose = str(index), _COUNTING[dataset](rng, asked)
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
