"""trec: questions and their types as examples, then one question to classify."""

from __future__ import annotations

from random import Random

from lazybench.data.sample.draft import Compose, Draft, Stream, branch, insert_at
from lazybench.data.sample.names import Names
from lazybench.data.sample.text import fill

QUESTIONS: dict[str, tuple[str, ...]] = {
    "Animal": (
        "What animal guards the {adj} {noun} of {place} ?",
        "Which beast is shown on the flag of {place} ?",
    ),
    "Birthplace": ("Where was {person} born ?", "In what town did the mother of {person} give birth ?"),
    "Calendar date": ("When was the {noun} of {place} {verb} ?", "What day did {person} leave {place} ?"),
    "Cause": ("Why was the {adj} {noun} of {place} {verb} ?", "What made {person} give up {topic} ?"),
    "Colour": ("What colour is the {noun} of {place} ?", "Which shade did {person} paint the {noun} ?"),
    "Distance": (
        "How far is {place} from the {adj} {noun} ?",
        "How many miles did {person} walk to {place} ?",
    ),
    "Duration": (
        "How long did {person} stay in {place} ?",
        "How many years did the {noun} at {place} last ?",
    ),
    "Food and drink": ("What dish is {place} known for ?", "What did {person} eat at the {noun} ?"),
    "Headcount": ("How many people live in {place} ?", "How many pupils did {person} teach ?"),
    "Instrument": ("What instrument did {person} play ?", "What is played at the {noun} of {place} ?"),
    "Language": ("What language is spoken in {place} ?", "In what tongue did {person} write about {topic} ?"),
    "Meaning": ("What is called a {adj} {noun} in {place} ?", "What does the word {noun} mean in {place} ?"),
    "Method": ("How do you repair a {adj} {noun} from {place} ?", "How did {person} improve {topic} ?"),
    "Money amount": ("How much does a {noun} cost in {place} ?", "What salary was paid to {person} ?"),
    "Occupation": ("What did {person} do for a living ?", "What was the trade of {person} ?"),
    "Organisation": ("What company makes the {noun} of {place} ?", "Which society did {person} found ?"),
    "Person": ("Who {verb} the {noun} of {place} ?", "What is the name of the mayor of {place} ?"),
    "Plant": ("What tree grows by the {noun} of {place} ?", "Which flower was bred by {person} ?"),
    "Temperature": ("How hot does it get in {place} ?", "How cold was the {noun} that {person} {verb} ?"),
    "Title of a work": ("What book did {person} write ?", "Which film was shot in {place} ?"),
    "Vehicle": ("What ship brought {person} to {place} ?", "Which coach runs to the {noun} of {place} ?"),
    "Weight": ("How heavy is the {noun} of {place} ?", "How many pounds did {person} lift ?"),
}
"""Type of question -> its templates; every template has a name in it, so that no question comes twice."""


def trec(rng: Random, position: float) -> Compose:
    """The query's own type is among the examples, at `position`, even in the shortest context."""
    names = Names(rng)
    label = rng.choice(tuple(QUESTIONS))
    query, example = (_ask(label, rng, names) for _ in range(2))
    examples_rng = branch(rng)

    def unit() -> str:
        other = examples_rng.choice(tuple(QUESTIONS))
        return _example(_ask(other, examples_rng, names), other)

    examples = Stream(unit)
    planted = _example(example, label)
    return lambda n: Draft(
        context="\n".join(insert_at(examples.take(n), position, planted)),
        answers=(label,),
        input=f"Question: {query}\nType:",
        all_classes=tuple(QUESTIONS),
    )


def _ask(label: str, rng: Random, names: Names) -> str:
    template = rng.choice(QUESTIONS[label])
    makers = {"person": names.person, "place": names.place}
    # A long context asks thousands of questions: names are made only where they are used.
    return fill(template, rng, {slot: make() for slot, make in makers.items() if f"{{{slot}}}" in template})


def _example(question: str, label: str) -> str:
    return f"Question: {question}\nType: {label}"
