"""All that transformers makes necessary: LazyLLM on an unmodified model, through its own `generate`."""
