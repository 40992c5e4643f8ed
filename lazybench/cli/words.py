"""Reads `key=value` words for the commands that Hydra does not configure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from lazybench.errors import LazyBenchError, suggest


def settings(words: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The defaults with the given values in their places.

    Raises:
        LazyBenchError: a word is not `key=value`, its key is unknown, or its value is empty.
    """
    read = dict(defaults)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            names = [f"{name}=" for name in defaults]
            hint = f"did you mean {names[0]}{word}?" if os.path.exists(word) else suggest(key, names)
            raise LazyBenchError(f"{word!r} is not key=value: {hint}")
        if key not in defaults:
            raise LazyBenchError(f"unknown setting {key!r}: {suggest(key, defaults)}")
        if not value.strip(","):
            raise LazyBenchError(f"{key}= is empty: give a folder")
        read[key] = value
    return read
