"""LazyLLM inside other programs: a program a file, imported by name, since each needs that program."""
