"""passage_count and passage_retrieval_en: numbered paragraphs to count or to find."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from lazybench.data.sample.draft import Compose, Draft, Stream, branch
from lazybench.data.sample.names import Names
from lazybench.data.sample.text import draw, fill, sentence

_COUNTED = 40  # most paragraphs of a passage_count context
_RETRIEVED = 30  # most paragraphs of a passage_retrieval_en context: as many as its prompt says
_REPEAT = 0.35  # chance that a paragraph of passage_count repeats an earlier one

LEADS = (
    ("{s} was a {job} who lived in {place}.", "It is about a {job} called {s}, whose home was {place}."),
    ("{s} wrote about {topic} in {year}.", "It deals with {s} and a text of {year} on {topic}."),
    (
        "{s} ran the {noun} works of {place}.",
        "It tells of the {noun} works in {place} and of {s}, who was in charge.",
    ),
)
"""First sentence of a paragraph, and the abstract that describes it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """How a paragraph begins, and an abstract of it in other words."""

    lead: str
    abstract: str


def passage_retrieval(rng: Random, position: float) -> Compose:
    """Which paragraph is the abstract from? The one at `position` of them."""
    names = Names(rng)
    topics = [_topic(rng, names) for _ in range(_RETRIEVED)]
    sentences = Stream(lambda: sentence("encyclopedia", rng))

    def compose(n: int) -> Draft:
        # One paragraph is there from the start; units add paragraphs first, then sentences to each in turn.
        count = min(_RETRIEVED, n + 1)
        extra = sentences.take(n + 1 - count)
        paragraphs = [" ".join([topics[i].lead, *extra[i::_RETRIEVED]]) for i in range(count)]
        asked = int(position * count)
        return Draft(_numbered(paragraphs), (f"Paragraph {asked + 1}",), topics[asked].abstract)

    return compose


def passage_count(rng: Random, position: float) -> Compose:
    """How many different paragraphs are there? The evidence is the whole text, so `position` has no say."""
    names = Names(rng)
    source = _sources(rng)
    different = max(source) + 1
    leads = [_topic(rng, names).lead for _ in range(different)]
    sentence_rng = branch(rng)
    sentences = Stream(lambda: sentence("encyclopedia", sentence_rng))

    def compose(n: int) -> Draft:
        # Units add paragraphs first, then sentences to each text in turn, its repetition included.
        shown = source[: n + 1]
        extra = sentences.take(n + 1 - len(shown))
        texts = [" ".join([lead, *extra[i::different]]) for i, lead in enumerate(leads)]
        return Draft(_numbered([texts[i] for i in shown]), (str(max(shown) + 1),))

    return compose


def _sources(rng: Random) -> list[int]:
    """The number of the text that each paragraph shows: counted up from 0, each shown twice at most."""
    source: list[int] = []
    once: list[int] = []
    different = 0
    for _ in range(_COUNTED):
        if once and rng.random() < _REPEAT:
            source.append(once.pop(rng.randrange(len(once))))
        else:
            source.append(different)
            once.append(different)
            different += 1
    return source


def _topic(rng: Random, names: Names) -> Topic:
    values = {slot: draw(slot, rng) for slot in ("job", "topic", "year", "noun")}
    values |= {"s": names.person(), "place": names.place()}
    lead, abstract = (fill(part, rng, values) for part in rng.choice(LEADS))
    return Topic(lead, abstract)


def _numbered(paragraphs: list[str]) -> str:
    return "\n\n".join(f"Paragraph {i}: {text}" for i, text in enumerate(paragraphs, start=1))
