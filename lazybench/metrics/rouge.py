"""LongBench's ROUGE: sentence-split ROUGE-L F of the `rouge` package (`rouge_score` in LongBench's code)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rouge import Rouge

_ROUGE = Rouge(metrics=["rouge-l"])

# `rouge` walks the longest common subsequence back recursively, and LongBench's code gives 0 to a pair
# that needs more frames than Python's default limit leaves its script. The same allowance holds here,
# however deep the caller stands, so that a score does not depend on who asks for it. (Python 3.11 counts
# the caller's C frames too, which nothing can see from here: there it is short by a handful.)
_OFFICIAL_LIMIT = 1000
_OFFICIAL_DEPTH = 3  # the script, `scorer`, `rouge_score`


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """ROUGE-L F, 0 to 1; 0 for whatever makes `rouge` fail, such as an empty prediction."""
    return rouge_l(prediction, reference, _OFFICIAL_DEPTH)


def rouge_l(prediction: str, reference: str, official_depth: int) -> float:
    """`score`, for a metric whose call in LongBench's code stands `official_depth` frames deep."""
    try:
        with _recursion_limit(_OFFICIAL_LIMIT - official_depth):
            return _ROUGE.get_scores([prediction], [reference], avg=True)["rouge-l"]["f"]
    except (ValueError, RecursionError):
        return 0.0


@contextmanager
def _recursion_limit(frames: int) -> Iterator[None]:
    """Leave the body of the `with` statement `frames` frames to call into."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(_depth() - _FRAMES_HERE + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


_FRAMES_HERE = 3  # `_depth`, `_recursion_limit`, contextlib's `__enter__`


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth
