"""LongBench's `count_score`: how many of the numbers in the prediction are the right one."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"\d+")


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """Share of the prediction's numbers that equal the reference digit by digit; 0 without numbers."""
    numbers = _NUMBER.findall(prediction)
    return numbers.count(reference) / len(numbers) if numbers else 0.0
