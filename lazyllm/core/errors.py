"""The one exception of the library."""


class LazyLLMError(ValueError):
    """What LazyLLM cannot do right; the message says in one line what that is, and what would work."""
