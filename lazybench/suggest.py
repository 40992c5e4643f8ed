"""The hint that ends a message about an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_SHOWN = 12


def suggest(name: str, choices: Iterable[str]) -> str:
    """Say which of `choices` was meant: the nearest name, or where none is near all of them, as far as they fit."""
    choices = list(choices)
    near = get_close_matches(name[:200], choices, n=1)  # its time grows with the square of the length
    if near:
        return f"did you mean {near[0]!r}?"
    more = len(choices) - _SHOWN
    shown = ", ".join(choices[:_SHOWN])
    return f"choose one of: {shown}" + (f" or {more} more, which lazybench list shows" if more > 0 else "")
