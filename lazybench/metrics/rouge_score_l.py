"""ROUGE-L of the `rouge-score` package: without stemming and without splitting sentences.

Reported beside LongBench's own `rouge`, with which it disagrees.
"""

from __future__ import annotations

from collections.abc import Sequence

from rouge_score.rouge_scorer import RougeScorer

_SCORER = RougeScorer(["rougeL"])


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """ROUGE-L F-measure, 0 to 1."""
    return float(_SCORER.score(reference, prediction)["rougeL"].fmeasure)
