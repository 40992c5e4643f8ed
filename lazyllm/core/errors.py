"""The one exception of the library."""


class LazyLLMError(ValueError):
    """Something LazyLLM cannot do right: the message says what, and what would work, in one line."""
