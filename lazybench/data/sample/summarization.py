"""gov_report, qmsum, multi_news: the reference summary is put together from the text's own key sentences."""

from __future__ import annotations

from random import Random

from lazybench.data.sample.draft import Compose, Draft, Stream, branch, insert_at, split_evenly
from lazybench.data.sample.names import Names
from lazybench.data.sample.text import draw, fill, sentence
from lazybench.data.sample.words import BANKS

_SECTIONS = 12  # at most, in a report; keeps the summary within a page
_SECTION_UNITS = 6  # filler sentences a section has before another one starts
_PARAGRAPH = 6  # sentences
_DECISION_EVERY = 9  # turns

FINDINGS = (
    "The {agency} did not {action} at {number} of its sites in {place}.",
    "Auditors found that {place} had spent {small} percent of the {program} budget on {topic}.",
    "The {agency} has agreed to {action} in {place} within {small} months.",
    "In {place} the {program} program served {number} households, fewer than planned.",
    "Officials of {place} could not show that they had begun to {action}.",
)
NEWS_LEADS = (
    "A {event} in {place} on {weekday} left {number} people without power, officials said.",
    "Investigators looking into the {event} in {place} say a worn {noun} was the likely cause.",
    "{person}, who led the rescue at {place}, said the {event} could have been far worse.",
    "The {event} in {place} will cost about {small} million to put right, according to the council.",
    "Engineers had warned of a {event} in {place} in {year}, documents show.",
    "Homes near the {event} in {place} were declared safe after {small} days of checks.",
    "{person} has been asked to lead an inquiry into the {event} in {place}.",
    "A fund for families hit by the {event} in {place} has raised {number} thousand.",
)


def gov_report(rng: Random, position: float) -> Compose:
    """A report in sections, each with one finding; the summary lists the findings."""
    names = Names(rng)
    findings = [fill(rng.choice(FINDINGS), rng, {"place": names.place()}) for _ in range(_SECTIONS)]
    headings = [f"{names.place()}: {draw('topic', rng).capitalize()}" for _ in range(_SECTIONS)]
    sentences = Stream(lambda: sentence("report", rng))

    def compose(n: int) -> Draft:
        count = min(_SECTIONS, 1 + n // _SECTION_UNITS)
        sections = split_evenly(sentences.take(n), count)
        bodies = [_paragraphs(insert_at(body, position, key)) for body, key in zip(sections, findings, strict=False)]
        context = "\n\n".join(f"{heading}\n\n{body}" for heading, body in zip(headings, bodies, strict=False))
        return Draft(context, (" ".join(findings[:count]),))

    return compose


def multi_news(rng: Random, position: float) -> Compose:
    """Several articles about one event; the summary is made of their key sentences."""
    names = Names(rng)
    event = {"event": draw("event", rng), "place": names.place()}
    leads = [fill(lead, rng, {**event, "person": names.person()}) for lead in NEWS_LEADS]
    rng.shuffle(leads)
    sentences = Stream(lambda: sentence("news", rng))

    def compose(n: int) -> Draft:
        count = min(len(leads), 1 + n // _SECTION_UNITS)
        articles = split_evenly(sentences.take(n), count)
        bodies = [_paragraphs(insert_at(body, position, key)) for body, key in zip(articles, leads, strict=False)]
        context = "\n".join(f"Passage {i}:\n{body}" for i, body in enumerate(bodies, start=1))
        return Draft(context, (" ".join(leads[:count]),))

    return compose


def qmsum(rng: Random, position: float) -> Compose:
    """A meeting with many decisions; the query asks for one of them."""
    speakers = rng.sample(BANKS["role"], 4)
    products = list(BANKS["product"])
    rng.shuffle(products)
    asked = products.pop()
    slots = ("decision", "reason")
    asked_values = {"product": asked, **{slot: draw(slot, rng) for slot in slots}}
    turn_rng = branch(rng)

    def decide(values: dict[str, str]) -> str:
        text = "Okay , so we agree : the {product} will {decision} , because {reason} ."
        return f"{speakers[0]}: {fill(text, rng, values)}"

    def turn() -> str:
        # Other decisions are about other products: the asked one is decided once.
        if turn_rng.randrange(_DECISION_EVERY) == 0:
            values = {slot: draw(slot, turn_rng) for slot in slots}
            return decide({"product": turn_rng.choice(products), **values})
        return f"{turn_rng.choice(speakers)}: {sentence('meeting', turn_rng)}"

    turns = Stream(turn)
    query = f"What did the group decide about the {asked}?"
    answer = fill("The group decided that the {product} will {decision}, because {reason}.", rng, asked_values)
    decision = decide(asked_values)
    return lambda n: Draft("\n".join(insert_at(turns.take(n), position, decision)), (answer,), query)


def _paragraphs(sentences: list[str]) -> str:
    starts = range(0, len(sentences), _PARAGRAPH)
    return "\n".join(" ".join(sentences[i : i + _PARAGRAPH]) for i in starts)
