"""Expected errors, and their messages."""

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

_END = 300  # characters of a long message's beginning and end that are shown
_SHOWN = 14
_NEAR = 0.65  # similarity, 0 to 1: `rum` and `run` are that near, `longbench` and `repobench-p` are not


class LazyBenchError(Exception):
    """Bad input: the message says in one line what was wrong, what would be right, and where.

    It reaches the user as that line, with exit code 2.
    """


class RecordFailure(Exception):
    """The method cannot run on a record: its row gets the message, and the run continues."""


@contextmanager
def prefix_errors(prefix: str, kind: type[Exception]) -> Iterator[None]:
    """Turn errors of a kind into `LazyBenchError`s that begin with a prefix, such as the name of a setting."""
    try:
        yield
    except kind as error:
        raise LazyBenchError(f"{prefix}: {error}") from error


def one_line(message: str) -> str:
    """Return a message as one printable line of about 600 characters at most; a user may have typed anything."""
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in " ".join(message.split()))
    # The beginning names the problem, the end its solution.
    return text if len(text) <= 2 * _END else f"{text[:_END]}...{text[-_END:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, with its type if that is not a common one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # A line that ends in a colon is a heading.
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    is_common = isinstance(error, LazyBenchError | OSError | ValueError | ImportError | RuntimeError)
    return line if is_common else f"{type(error).__name__}: {line}"


def raised_by(error: BaseException) -> str:
    """Describe an exception that a function of the user's raised, with file and line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def suggest(name: str, choices: Iterable[str], prefix: str = "") -> str:
    """Suggest the choice nearest to `name`, or all choices if none is near.

    `prefix`, such as `method.`, is put before each choice.
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
    """Yield an exception and those that led to it, the last one first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
