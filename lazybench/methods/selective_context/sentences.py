"""Cuts texts into sentences as the original does."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise

# The original's: after a full stop or question mark, but not inside `e.g. ` nor after a title such as `Dr. `.
_BORDER = re.compile(r"(?<!\w\.\w.)(?<![A-Z][a-z]\.)(?<=\.|\?)\s")


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where the sentences of `text` start and end, without the white space around them; none of a blank text."""
    borders = [0, *(match.end() for match in _BORDER.finditer(text)), len(text)]
    spans = []
    for start, end in pairwise(borders):
        sentence = text[start:end]
        start += len(sentence) - len(sentence.lstrip())
        if content := sentence.strip():
            spans.append((start, start + len(content)))
    return spans


def flatten(text: str, glue: str) -> tuple[str, list[tuple[int, int]]]:
    """The text as the original sees it, and where its sentences start and end.

    Each run of white space is one space, and `glue` is between sentences.
    """
    flat = re.sub(r"\s+", " ", text)
    sentences = [flat[start:end] for start, end in sentence_spans(flat)]
    starts = accumulate((len(sentence) + len(glue) for sentence in sentences), initial=0)
    spans = [(start, start + len(sentence)) for start, sentence in zip(starts, sentences, strict=False)]
    return glue.join(sentences), spans
