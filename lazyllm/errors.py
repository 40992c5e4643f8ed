"""The one exception of the library."""


class LazyLLMError(ValueError):
    """Something LazyLLM cannot do right: the message says what, and what would work, in one line."""


def unsupported(what: str) -> LazyLLMError:
    """The error for a model whose layers do what LazyLLM cannot follow."""
    return LazyLLMError(f"{what}: this architecture is not supported")
