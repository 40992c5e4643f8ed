"""LongBench's `retrieval_score`: how many of the numbers in the prediction are the right paragraph's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lazybench.errors import LazyBenchError
from lazybench.metrics import count


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """`count` against the number in a reference such as `Paragraph 7`.

    Raises:
        LazyBenchError: the reference names no paragraph.
    """
    return numbered(prediction, reference, "Paragraph ")


def numbered(prediction: str, reference: str, word: str) -> float:
    """`count` against the number that follows `word` in the reference."""
    found = re.search(rf"{word}(\d+)", reference)
    if found is None:
        raise LazyBenchError(f"the reference must read '{word}<number>', not {reference!r}")
    return count.score(prediction, found[1], None)
