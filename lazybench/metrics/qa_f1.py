"""Token F1 of an answer, as SQuAD defines it (LongBench's `qa_f1_score`)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """F1 over lower-cased words without ASCII punctuation and articles, 0 to 1."""
    return token_f1(_words(prediction), _words(reference))


def token_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two bags of tokens; 0 where they share none."""
    shared = sum((Counter(prediction) & Counter(reference)).values())
    if shared == 0:
        return 0.0
    precision = shared / len(prediction)
    recall = shared / len(reference)
    return 2 * precision * recall / (precision + recall)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()
