"""The hint that ends a message about an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(name: str, choices: Iterable[str]) -> str:
    """Say which of `choices` was meant: the nearest name, or all of them where none is near."""
    choices = list(choices)
    near = get_close_matches(name, choices, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(choices)}"
