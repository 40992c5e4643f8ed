"""hotpotqa, 2wikimqa, musique: a question whose answer takes two or three of the passages."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from lazybench.data.sample.draft import Compose, Draft, Stream, branch, grouped, insert_at
from lazybench.data.sample.names import Names
from lazybench.data.sample.text import draw, fill, sentence

_EXTRA = 4  # filler sentences in a passage, once there is room for them


@dataclass(frozen=True, slots=True)
class Passage:
    """A title and the sentence that states its fact."""

    title: str
    lead: str


@dataclass(frozen=True, slots=True)
class Puzzle:
    """The passages that a question needs, in the order of the reasoning, and its answer."""

    passages: tuple[Passage, ...]
    question: str
    answer: str


class World:
    """Passages about invented people, places and works; each fact is stated once."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.names = Names(rng)

    def work(self, title: str, author: str, year: str) -> Passage:
        """A work and who made it when."""
        return self._passage(
            title, "{s} is a {work_kind} by {author}, first shown in {year}.", author=author, year=year
        )

    def person(self, name: str, place: str) -> Passage:
        """A person and where they were born."""
        return self._passage(name, "{s} was a {job} who was born in {place}.", place=place)

    def child(self, name: str, parent: str) -> Passage:
        """A person and their parent."""
        return self._passage(name, "{s} was a {job}, the only child of the widowed {parent}.", parent=parent)

    def born_in_year(self, name: str, year: str) -> Passage:
        """A person and the year of their birth."""
        return self._passage(name, "{s} was a {job}, born in {year}.", year=year)

    def place(self, name: str, river: str) -> Passage:
        """A place and the river it lies on."""
        return self._passage(name, "{s} is a market town on the River {river}.", river=river)

    def any(self) -> Passage:
        """A passage of a random kind about somebody or something new."""
        names, rng = self.names, self._rng
        kind = rng.randrange(5)
        if kind == 0:
            return self.work(names.work(), names.person(), draw("year", rng))
        if kind == 1:
            return self.person(names.person(), names.place())
        if kind == 2:
            return self.child(names.person(), names.person())
        if kind == 3:
            return self.born_in_year(names.person(), draw("year", rng))
        return self.place(names.place(), draw("river", rng))

    def _passage(self, subject: str, template: str, **values: str) -> Passage:
        return Passage(subject, fill(template, self._rng, {"s": subject, **values}))


def hotpotqa(rng: Random, position: float) -> Compose:
    """Two hops (work, author, birthplace), or which of two people was born first."""
    world = World(rng)
    names = world.names
    if rng.randrange(2):
        title, author, place = names.work(), names.person(), names.place()
        passages = (world.work(title, author, draw("year", rng)), world.person(author, place))
        return _compose(
            rng, position, world, Puzzle(passages, f"In which place was the author of {title} born?", place)
        )
    first, second = names.person(), names.person()
    years = _two_years(rng)
    passages = (world.born_in_year(first, years[0]), world.born_in_year(second, years[1]))
    answer = first if int(years[0]) < int(years[1]) else second
    return _compose(rng, position, world, Puzzle(passages, f"Who was born first, {first} or {second}?", answer))


def two_wiki(rng: Random, position: float) -> Compose:
    """2wikimqa: which of two works is older, or somebody's grandparent."""
    world = World(rng)
    names = world.names
    if rng.randrange(2):
        child, parent, grandparent = names.person(), names.person(), names.person()
        passages = (world.child(child, parent), world.child(parent, grandparent))
        question = f"Who is the grandparent of {child}?"
        return _compose(rng, position, world, Puzzle(passages, question, grandparent))
    first, second = names.work(), names.work()
    years = _two_years(rng)
    passages = (world.work(first, names.person(), years[0]), world.work(second, names.person(), years[1]))
    answer = first if int(years[0]) < int(years[1]) else second
    return _compose(rng, position, world, Puzzle(passages, f"Which was shown first, {first} or {second}?", answer))


def musique(rng: Random, position: float) -> Compose:
    """Three hops: work, author, birthplace, river."""
    world = World(rng)
    names = world.names
    title, author, place, river = names.work(), names.person(), names.place(), draw("river", rng)
    passages = (
        world.work(title, author, draw("year", rng)),
        world.person(author, place),
        world.place(place, river),
    )
    question = f"On which river does the birthplace of the author of {title} lie?"
    return _compose(rng, position, world, Puzzle(passages, question, f"River {river}"))


def _two_years(rng: Random) -> tuple[str, str]:
    first, second = rng.sample(range(1710, 1990), 2)
    return str(first), str(second)


def _compose(rng: Random, position: float, world: World, puzzle: Puzzle) -> Compose:
    hops = len(puzzle.passages)
    extras = [sentence("encyclopedia", rng) for _ in range(hops * _EXTRA)]
    filler_rng = branch(rng)
    heads, fillers = Stream(world.any), Stream(lambda: sentence("encyclopedia", filler_rng))

    def compose(n: int) -> Draft:
        # Units go to evidence and distractors in turn, until the evidence passages are as long as the rest.
        given = min((n + 1) // 2, len(extras))
        passages = [_render(head, part) for head, part in grouped(n - given, heads, fillers, _EXTRA)]
        for hop, passage in enumerate(puzzle.passages):
            place = (position + hop / hops) % 1
            passages = insert_at(passages, place, _render(passage, extras[hop:given:hops]))
        numbered = (f"Passage {i}:\n{text}" for i, text in enumerate(passages, start=1))
        return Draft("\n".join(numbered), (puzzle.answer,), puzzle.question)

    return compose


def _render(passage: Passage, extra: list[str]) -> str:
    return f"{passage.title}\n{' '.join([passage.lead, *extra])}"
