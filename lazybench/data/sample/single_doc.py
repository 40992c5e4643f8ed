"""narrativeqa, qasper, multifieldqa_en: one long document with a planted fact and a question about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lazybench.data.sample.draft import Compose, Draft, Maker, Stream, insert_at, split_evenly
from lazybench.data.sample.names import Names
from lazybench.data.sample.text import draw, fill, sentence


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement with the question it answers; `{person}`, `{place}`, `{corpus}` are names of their own."""

    statement: str
    question: str
    answers: tuple[str, ...]


STORY_FACTS = (
    Fact(
        "That night {person} hid the {object} {hideout}, and told no one.",
        "Where did {person} hide the {object}?",
        ("{hideout}",),
    ),
    Fact(
        "In the end {person} gave the {object} to {other}, who wrapped it in a scarf.",
        "To whom did {person} give the {object}?",
        ("{other}",),
    ),
    Fact(
        "Before the wedding {person} had run away to {place} and worked there for years.",
        "Where did {person} run away to before the wedding?",
        ("{place}",),
    ),
    Fact(
        "Nobody guessed that {person} had been working as a {job} all along.",
        "What had {person} been working as all along?",
        ("{job}", "a {job}"),
    ),
)
PAPER_FACTS = (
    Fact(
        "The {corpus} corpus was labelled by {small} annotators, each of whom saw every document.",
        "How many annotators labelled the {corpus} corpus?",
        ("{small}", "{small} annotators"),
    ),
    Fact(
        "Our {corpus} corpus was collected from {source} and covers {number} documents.",
        "What was the {corpus} corpus collected from?",
        ("{source}",),
    ),
    Fact(
        "On the {corpus} test set the full model reaches {number} points of {measure}.",
        "How many points does the full model reach on the {corpus} test set?",
        ("{number}", "{number} points"),
    ),
)
REPORT_FACTS = (
    Fact(
        "The {noun} at {place} was opened in {year} under the direction of {person}.",
        "Who directed the opening of the {noun} at {place}?",
        ("{person}",),
    ),
    Fact(
        "The survey of {place} was completed in {year} and led to a ban on new wells.",
        "In which year was the survey of {place} completed?",
        ("{year}",),
    ),
    Fact(
        "The council of {place} asked the {agency} to take over its {program} program.",
        "Which body did the council of {place} ask to take over its {program} program?",
        ("{agency}", "The {agency}"),
    ),
)
PAPER_HEADINGS = (
    "Introduction",
    "Related Work",
    "Data",
    "Method",
    "Experiments",
    "Results",
    "Discussion",
    "Conclusion",
)
REPORT_HEADINGS = (
    "Summary",
    "Background",
    "Scope",
    "Findings",
    "Costs",
    "Local Views",
    "Next Steps",
    "Notes",
)

_PARAGRAPH = 5  # sentences
_CHAPTER = 60  # sentences
_RIVAL_EVERY = 12  # one filler sentence in so many states a fact of the same kind about somebody else


def story(rng: Random, position: float) -> Compose:
    """narrativeqa: a story in chapters."""
    title = Names(rng).work().upper()

    def layout(sentences: list[str]) -> str:
        chapters = split_evenly(sentences, -(-len(sentences) // _CHAPTER))
        bodies = [f"CHAPTER {i}\n\n{_paragraphs(chapter)}" for i, chapter in enumerate(chapters, start=1)]
        return "\n\n\n".join([title, *bodies])

    return _document(rng, position, "story", STORY_FACTS, layout)


def sectioned(genre: str, facts: tuple[Fact, ...], headings: tuple[str, ...]) -> Maker:
    """qasper and multifieldqa_en: a paper or a report under headings, as many as there is text for."""

    def layout(sentences: list[str]) -> str:
        count = min(len(headings), -(-len(sentences) // _PARAGRAPH))
        sections = split_evenly(sentences, count)
        return "\n\n".join(f"{heading}\n{_paragraphs(body)}" for heading, body in zip(headings, sections, strict=False))

    return lambda rng, position: _document(rng, position, genre, facts, layout)


def _document(
    rng: Random, position: float, genre: str, facts: tuple[Fact, ...], layout: Callable[[list[str]], str]
) -> Compose:
    names = Names(rng)
    fact = rng.choice(facts)
    values = _values(rng, names)
    statement = fill(fact.statement, rng, values)

    def unit() -> str:
        if rng.randrange(_RIVAL_EVERY) == 0:
            return fill(rng.choice(facts).statement, rng, _values(rng, names))
        return sentence(genre, rng)

    sentences = Stream(unit)
    question = fill(fact.question, rng, values)
    answers = tuple(fill(answer, rng, values) for answer in fact.answers)
    return lambda n: Draft(layout(insert_at(sentences.take(n), position, statement)), answers, question)


def _values(rng: Random, names: Names) -> dict[str, str]:
    """One filling for all templates of a fact: names of its own, and each drawn slot the same everywhere."""
    slots = (
        "object",
        "hideout",
        "job",
        "small",
        "number",
        "source",
        "measure",
        "noun",
        "year",
        "agency",
        "program",
    )
    drawn = {slot: draw(slot, rng) for slot in slots}
    return drawn | {
        "person": names.person(),
        "other": names.person(),
        "place": names.place(),
        "corpus": names.corpus(),
    }


def _paragraphs(sentences: list[str]) -> str:
    starts = range(0, len(sentences), _PARAGRAPH)
    return "\n\n".join(" ".join(sentences[i : i + _PARAGRAPH]) for i in starts)
