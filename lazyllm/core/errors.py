"""The one exception of the library, and its message for models that cannot be followed."""


class LazyLLMError(ValueError):
    """What LazyLLM cannot do right; the message says in one line what that is, and what would work."""


def unsupported(what: str) -> LazyLLMError:
    """Return the error for a model whose code does something that LazyLLM cannot follow."""
    return LazyLLMError(f"{what}: this architecture is not supported")
