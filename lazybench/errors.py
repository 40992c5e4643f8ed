"""What goes wrong in ways that are expected, and how it is said."""

import traceback
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

_LINE = 600  # characters
_SHOWN = 14
_NEAR = 0.65  # similarity, 0 to 1: `rum` and `run` are that near, `longbench` and `repobench-p` are not


class LazyBenchError(Exception):
    """Bad input: the message says in one line what was wrong, what would be right, and where.

    It reaches the user as that line, with exit code 2.
    """


class RecordFailure(Exception):
    """This method cannot run on this record; the row says why; the run goes on."""


def one_line(message: str) -> str:
    """`message` in one printable line of readable length: what a user typed may hold anything."""
    text = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in " ".join(message.split()))
    # The beginning says what it is about, the end what would be right.
    return text if len(text) <= _LINE else f"{text[: _LINE // 2]}...{text[-_LINE // 2 :]}"


def first_line(error: BaseException) -> str:
    """The part of an exception's message that fits one line; its type where the message says little by itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # A line that ends in a colon is a heading.
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    plain = isinstance(error, LazyBenchError | OSError | ValueError | ImportError | RuntimeError)
    return said if plain else f"{type(error).__name__}: {said}"


def raised_by(error: BaseException) -> str:
    """What a function of the user's raised, and where, in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"


def suggest(name: str, choices: Iterable[str], prefix: str = "") -> str:
    """Say which of `choices` was meant by `name`: the nearest, or where none is near all of them, as far as they fit.

    `prefix`, such as `method.`, is shown in front of each choice.
    """
    choices = list(choices)
    folded = {choice.lower(): choice for choice in choices}
    near = get_close_matches(name[:200].lower(), folded, n=1, cutoff=_NEAR)  # takes the square of the length
    if near:
        return f"did you mean {prefix + folded[near[0]]!r}?"
    more = len(choices) - _SHOWN
    shown = ", ".join(prefix + choice for choice in choices[:_SHOWN])
    return f"choose one of: {shown}" + (f" or {more} more, which lazybench list shows" if more > 0 else "")


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that led to it, the last one first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
