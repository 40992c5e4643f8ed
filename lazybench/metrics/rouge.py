"""ROUGE-L, as LongBench takes it and as the `rouge-score` package has it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from lazybench.metrics.qa import segment
from lazybench.metrics.registry import metric

if TYPE_CHECKING:
    from rouge import Rouge

# `rouge` walks the longest common subsequence back recursively, and LongBench's code gives 0 to a pair
# that needs more frames than Python's default limit leaves its script. The same allowance holds here,
# however deep the caller stands, so that a score does not depend on who asks for it. (Python 3.11 counts
# the caller's C frames too, which nothing can see from here: there it is short by a handful.)
_OFFICIAL_LIMIT = 1000
_FRAMES_HERE = 3  # `_depth`, `_recursion_limit`, contextlib's `__enter__`


@metric(needs="rouge")
def rouge(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """Sentence-split ROUGE-L F of the `rouge` package, 0 to 1 (LongBench's `rouge_score`).

    0 for whatever makes `rouge` fail, such as an empty prediction.
    """
    return _rouge_l(prediction, reference, official_depth=3)  # the script, `scorer`, `rouge_score`


@metric(needs="rouge")
def rouge_zh(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """`rouge` over jieba's words, 0 to 1 (LongBench's `rouge_zh_score`)."""
    # Behind the script and `scorer` LongBench's `rouge_zh_score` calls its `rouge_score`.
    return _rouge_l(" ".join(segment(prediction)), " ".join(segment(reference)), official_depth=4)


@metric(needs="rouge_score")
def rouge_score_l(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """ROUGE-L F of the `rouge-score` package, 0 to 1: without stemming and without splitting sentences.

    Reported beside LongBench's own `rouge`, with which it disagrees.
    """
    from rouge_score.rouge_scorer import RougeScorer

    return float(RougeScorer(["rougeL"]).score(reference, prediction)["rougeL"].fmeasure)


def _rouge_l(prediction: str, reference: str, official_depth: int) -> float:
    """ROUGE-L F, for a metric whose call in LongBench's code stands `official_depth` frames deep."""
    scorer = _scorer()
    try:
        with _recursion_limit(_OFFICIAL_LIMIT - official_depth):
            return scorer.get_scores([prediction], [reference], avg=True)["rouge-l"]["f"]
    except (ValueError, RecursionError):
        return 0.0


@cache
def _scorer() -> Rouge:
    from rouge import Rouge

    return Rouge(metrics=["rouge-l"])


@contextmanager
def _recursion_limit(frames: int) -> Iterator[None]:
    """Leave the body of the `with` statement `frames` frames to call into."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(_depth() - _FRAMES_HERE + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth
