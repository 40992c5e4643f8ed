"""RULER's `string_match_all`: how many of the references the prediction has in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f]")


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """Share of the references, one a line of `reference`, that stand in the prediction, whatever the case of letters.

    As in RULER, control characters of the prediction count as line breaks, and white space around it does not count.
    """
    said = _CONTROL.sub("\n", prediction.strip()).strip().lower()
    references = reference.split("\n")
    return sum(one.lower() in said for one in references) / len(references)
