"""Turns what Hydra says of a bad command line into one line."""

from __future__ import annotations

import re

from lazybench.errors import LazyBenchError


def explain(error: BaseException) -> str:
    """One line: what was wrong with the settings, and what would be right."""
    cause: BaseException | None = error
    while cause is not None:  # our own words, where a check of ours was the cause
        if isinstance(cause, LazyBenchError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip() for line in str(error).strip().splitlines()]
    lines = [line for line in lines if line and not line.startswith(("full_key:", "object_type=", "reference_type="))]
    text = re.sub(r"\s+", " ", " ".join(lines)) or type(error).__name__
    key = re.search(r"full_key: (\S+)", str(error))
    return f"{key.group(1)}: {text}" if key and key.group(1) not in text else text
