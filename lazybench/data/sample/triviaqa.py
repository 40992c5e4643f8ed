"""triviaqa: passages with a question and its answer as examples, then one passage with a question."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from lazybench.data.sample.draft import Compose, Draft, Stream, branch, grouped, insert_at
from lazybench.data.sample.names import Names
from lazybench.data.sample.text import draw, fill, sentence

_EXTRA = 3  # filler sentences in a passage

TRIVIA = (
    ("{work} is a {work_kind} that {person} finished in {year}.", "Who finished {work}?", "{person}"),
    ("{person} was a {job} who came from {place}.", "Where did {person} come from?", "{place}"),
    ("The town of {place} lies on the River {river}.", "On which river does {place} lie?", "River {river}"),
    (
        "{person} opened the {noun} of {place} in {year}.",
        "In which year did {person} open the {noun}?",
        "{year}",
    ),
)
"""Fact, question, answer."""


@dataclass(frozen=True, slots=True)
class Trivia:
    """One fact, a question about it, the answer."""

    fact: str
    question: str
    answer: str


def triviaqa(rng: Random, position: float) -> Compose:
    """As in the original the fact stands in the input's own passage, here at `position` of it."""
    names = Names(rng)
    query = _trivia(rng, names)
    extra = [sentence("encyclopedia", rng) for _ in range(_EXTRA)]
    text = _render(query, extra, position)
    filler_rng = branch(rng)
    items, fillers = Stream(lambda: _trivia(rng, names)), Stream(lambda: sentence("encyclopedia", filler_rng))

    def compose(n: int) -> Draft:
        shots = [_render(item, part, position) + item.answer for item, part in grouped(n, items, fillers, _EXTRA)]
        return Draft("\n".join(shots), (query.answer,), text)

    return compose


def _trivia(rng: Random, names: Names) -> Trivia:
    values = {slot: draw(slot, rng) for slot in ("year", "river", "noun")}
    values |= {"person": names.person(), "place": names.place(), "work": names.work()}
    fact, question, answer = (fill(part, rng, values) for part in rng.choice(TRIVIA))
    return Trivia(fact, question, answer)


def _render(item: Trivia, extra: list[str], position: float) -> str:
    passage = " ".join(insert_at(extra, position, item.fact))
    return f"Passage:\n{passage}\nQuestion:\n{item.question}\nAnswer:\n"
