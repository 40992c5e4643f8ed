"""`rouge` over jieba's words (LongBench's `rouge_zh_score`)."""

from __future__ import annotations

from collections.abc import Sequence

from lazybench.metrics._segment import segment
from lazybench.metrics.rouge import rouge_l

_OFFICIAL_DEPTH = 4  # the script, `scorer`, `rouge_zh_score`, `rouge_score`


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """ROUGE-L F of the segmented texts, 0 to 1."""
    return rouge_l(" ".join(segment(prediction)), " ".join(segment(reference)), _OFFICIAL_DEPTH)
