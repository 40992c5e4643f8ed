"""Finds LazyLLM's schedule for a model within a budget of harm, or of speed."""
