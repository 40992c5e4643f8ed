"""The hint that ends a message about an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_SHOWN = 14
_NEAR = 0.65  # similarity, 0 to 1: `rum` and `run` are that near, `longbench` and `repobench-p` are not


def suggest(name: str, choices: Iterable[str], prefix: str = "") -> str:
    """Say which of `choices` was meant: the nearest name, or where none is near all of them, as far as they fit.

    Args:
        name: what was given.
        choices: what there is.
        prefix: what stands in front of each choice, such as `method.`, and of `name`.
    """
    choices = list(choices)
    folded = {choice.lower(): choice for choice in choices}
    near = get_close_matches(name[:200].lower(), folded, n=1, cutoff=_NEAR)  # takes the square of the length
    if near:
        return f"did you mean {prefix + folded[near[0]]!r}?"
    more = len(choices) - _SHOWN
    shown = ", ".join(prefix + choice for choice in choices[:_SHOWN])
    return f"choose one of: {shown}" + (f" or {more} more, which lazybench list shows" if more > 0 else "")
