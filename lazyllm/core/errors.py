"""The library's exception, and its message for models that are not supported."""


class LazyLLMError(ValueError):
    """An error whose message names in one line what is not supported, and what works."""


def unsupported(what: str) -> LazyLLMError:
    """Return the error for a model whose code is not supported."""
    return LazyLLMError(f"{what}: this architecture is not supported")
