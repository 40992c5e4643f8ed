"""The text of each token, so that a character of several tokens is there once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

# What a decoder writes for bytes that are no character, or not yet one.
_UNKNOWN = "\ufffd"
# Tokens without an end of their character, after which it is none: a character has at most four bytes.
_LONGEST = 8


def texts(tokenizer: Any, ids: Sequence[int]) -> Iterator[str]:
    """The text of each token; together they are the whole text.

    A token alone is often no text: it may hold some bytes of a character, or a space that is one only within a text.
    So tokens are decoded with those before them. A character whose bytes lie in several tokens belongs to the last of
    these, and the others of them yield an empty text.

    Args:
        tokenizer: what `decode(ids)` makes text with.
        ids: token ids.
    """
    # The window begins with the last token or tokens that ended a character.
    start, ended, shown = 0, 0, 0
    for last in range(len(ids)):
        text = _decode(tokenizer, ids[start : last + 1])
        ends = not text.endswith(_UNKNOWN) or last + 1 - ended >= _LONGEST or last + 1 == len(ids)
        known = text if ends else text.rstrip(_UNKNOWN)
        yield known[shown:]
        shown = max(shown, len(known))
        if ends:
            start, ended = ended, last + 1
            shown = len(_decode(tokenizer, ids[start:ended]))


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
