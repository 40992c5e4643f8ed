"""What goes wrong in ways that are expected."""


class LazyBenchError(Exception):
    """Bad input: the message says in one line what was wrong, what would be right, and where.

    It reaches the user as that line, with exit code 2.
    """


class RecordFailure(Exception):
    """This method cannot run on this record; the row says why; the run goes on."""


def first_line(error: BaseException) -> str:
    """The part of an exception's message that fits one line; its type where the message says little by itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # A line that ends in a colon is a heading.
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    plain = isinstance(error, OSError | ValueError | ImportError | RuntimeError)
    return said if plain else f"{type(error).__name__}: {said}"
