"""LongBench's `retrieval_zh_score`: `retrieval` with Chinese references."""

from __future__ import annotations

from collections.abc import Sequence

from lazybench.metrics.retrieval import numbered


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """`count` against the number in a reference such as `段落7`.

    Raises:
        LazyBenchError: the reference names no paragraph.
    """
    return numbered(prediction, reference, "段落")
