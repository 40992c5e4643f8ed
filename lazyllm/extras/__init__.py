"""What is built on LazyLLM: each module is imported by its name, since some need a program of their own."""
