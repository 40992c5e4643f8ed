"""The one exception of the library, and its message for models that cannot be followed."""


class LazyLLMError(ValueError):
    """An error that says in one line what LazyLLM cannot do right, and what would work."""


def unsupported(what: str) -> LazyLLMError:
    """Return the error for a model whose code does something that LazyLLM cannot follow."""
    return LazyLLMError(f"{what}: this architecture is not supported")
