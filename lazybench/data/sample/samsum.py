"""samsum: chats with a summary as examples, then one chat to summarise."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from lazybench.data.sample.draft import Compose, Draft, Stream, branch, grouped, insert_at
from lazybench.data.sample.text import draw, fill, sentence
from lazybench.data.sample.words import FIRST_NAMES

_EXTRA = 3  # lines of small talk in a chat
_LINE_END = "\r\n"  # the original's own, between the lines of a chat

CHATS = (
    ("can you {errand} on {weekday}?", "sure, i will do it", "{b} will {errand} on {weekday}."),
    ("where do we meet?", "at {spot}, on {weekday}", "{a} and {b} will meet at {spot} on {weekday}."),
    (
        "i can't come on {weekday}, i have to {errand}",
        "what a pity",
        "{a} can't come on {weekday} because {a} has to {errand}.",
    ),
    (
        "did you {errand}?",
        "i forgot, sorry! will do it on {weekday}",
        "{b} forgot to {errand} and will do it on {weekday}.",
    ),
)
"""What one says, what the other answers, the summary."""


@dataclass(frozen=True, slots=True)
class Chat:
    """Two speakers, a line of each, and what it comes to."""

    speakers: tuple[str, str]
    lines: tuple[str, str]
    summary: str


def samsum(rng: Random, position: float) -> Compose:
    """As in the original the input is a chat; the two lines that matter stand at `position` of it."""
    query = _chat(rng)
    text = _render(query, [sentence("chat", rng) for _ in range(_EXTRA)], position)
    filler_rng = branch(rng)
    chats, fillers = Stream(lambda: _chat(rng)), Stream(lambda: sentence("chat", filler_rng))

    def compose(n: int) -> Draft:
        shots = [_render(chat, part, position) + chat.summary for chat, part in grouped(n, chats, fillers, _EXTRA)]
        return Draft("\n".join(shots), (query.summary,), text)

    return compose


def _chat(rng: Random) -> Chat:
    a, b = rng.sample(FIRST_NAMES, 2)
    values = {"a": a, "b": b} | {slot: draw(slot, rng) for slot in ("errand", "weekday", "spot")}
    first, second, summary = (fill(part, rng, values) for part in rng.choice(CHATS))
    return Chat((a, b), (first, second), summary)


def _render(chat: Chat, small_talk: list[str], position: float) -> str:
    key = _LINE_END.join(f"{who}: {line}" for who, line in zip(chat.speakers, chat.lines, strict=True))
    talk = [f"{chat.speakers[i % 2]}: {line}" for i, line in enumerate(small_talk)]
    return f"Dialogue: {_LINE_END.join(insert_at(talk, position, key))}\nSummary: "
