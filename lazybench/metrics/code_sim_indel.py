"""`code_sim` with the Indel ratio, which `fuzzywuzzy` gives where python-Levenshtein is installed.

Reported beside LongBench's own `code_sim`, with which it disagrees on many lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapidfuzz.fuzz import ratio

from lazybench.metrics.code_sim import first_code_line


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """Indel ratio of the first code line and the reference, 0 to 1 in steps of 0.01."""
    return round(ratio(first_code_line(prediction), reference)) / 100
