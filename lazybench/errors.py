"""The one exception that reaches a user as one line and exit code 2."""


class LazyBenchError(Exception):
    """Bad input: the message says in one line what was wrong, what would be right, and where."""
