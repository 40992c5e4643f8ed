"""What goes wrong in ways that are expected."""


class LazyBenchError(Exception):
    """Bad input: the message says in one line what was wrong, what would be right, and where.

    It reaches the user as that line, with exit code 2.
    """


class RecordFailure(Exception):
    """This method cannot run on this record; the row says why; the run goes on."""
