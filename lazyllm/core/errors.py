"""The one exception of the library, and tables of what it refuses."""

from __future__ import annotations

from collections.abc import Iterable


class LazyLLMError(ValueError):
    """Something LazyLLM cannot do right: the message says what, and what would work, in one line."""


def refuse(table: Iterable[tuple[object, str]]) -> None:
    """Raise `LazyLLMError` with the message of the first row, (wrong, message), that is wrong."""
    for wrong, message in table:
        if wrong:
            raise LazyLLMError(message)


def unsupported(what: str) -> LazyLLMError:
    """The error for a model whose layers do what LazyLLM cannot follow."""
    return LazyLLMError(f"{what}: this architecture is not supported")
