"""Which part of a record's context a method may shorten, and where that part lies in the prompt."""

from __future__ import annotations

import re
from string import Formatter

from lazybench.data import DatasetFacts, Record
from lazybench.model.prompts import Prompt

# RepoBench's files are Python or Java, and each stands under its path. The one to complete is the last; in LongBench's
# own records it has no path, and begins with its imports like any other.
_PATH = r"^[\w./@+-]*\w\.(?:py|java)\r?$"
_FILE = re.compile(_PATH, re.MULTILINE)
_BEGINNING = re.compile(rf"(?:{_PATH}\n)?^(?:package|import|from)\b", re.MULTILINE)


def before_continued(record: Record, facts: DatasetFacts) -> int:
    """Length of that part of the record's context which its answer does not continue, in characters.

    The last file of a context begins with the first import behind the last path, and with the path itself where that
    stands right above it. Without an import it is all from the last path on, and without a path all of the context.
    When in doubt more is left whole. The line break before the part belongs to it.
    """
    if facts.continues is None or (facts.continues == "last_file" and record.input.strip()):
        return len(record.context)
    files = list(_FILE.finditer(record.context))
    if facts.continues == "context" or not files:
        return 0
    beginning = _BEGINNING.search(record.context, files[-1].start())
    return max(0, (beginning or files[-1]).start() - len("\n"))


def shortenable(prompt: Prompt) -> list[tuple[int, int]]:
    """Where in `prompt.text` the parts of the context lie that were not cut out and that the answer does not continue.

    Returns:
        starts and ends in order, one pair for each `{context}` of the dataset's prompt that something is left of.
        Neither the question nor an instruction is ever within.
    """
    facts, record = prompt.builder.facts, prompt.record
    filled, places = "", []
    for words, field, _, _ in Formatter().parse(facts.prompt):
        filled += words
        if field == "context":
            places.append((len(filled), len(filled) + before_continued(record, facts)))
        filled += "" if field is None else getattr(record, field)
    found = [(_after_cut(prompt, filled, start), _after_cut(prompt, filled, end)) for start, end in places]
    return [(start, end) for start, end in found if start < end]


def _after_cut(prompt: Prompt, filled: str, place: int) -> int:
    """Where in the truncated prompt a place of the filled-in one is; the cut itself if it was cut out."""
    if prompt.cut is None:
        return place
    # A character of several tokens may be cut in two, and take its neighbours with it.
    front, back = prompt.text[: prompt.cut].rstrip("\ufffd"), prompt.text[prompt.cut :].lstrip("\ufffd")
    cut_only = filled.startswith(front) and filled.endswith(back)
    # Else the tokenizer does not give text back as it was: special tokens in a record, lower case, other spaces.
    before, behind = (
        len(part if cut_only else prompt.builder.round_trip(part)) for part in (filled[:place], filled[place:])
    )
    if before <= len(front):
        return before
    return len(prompt.text) - behind if behind <= len(back) else prompt.cut
