"""LongBench's `classification_score`: the reference is named, and few other classes are."""

from __future__ import annotations

from collections.abc import Sequence

from lazybench.errors import LazyBenchError


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """1 / (number of classes named in the prediction) where the reference is one of them, else 0.

    Raises:
        LazyBenchError: `all_classes` is missing.
    """
    if all_classes is None:
        raise LazyBenchError("classification needs the class names in 'all_classes', and there are none")
    named = [name for name in all_classes if name in prediction]
    # Classes that are part of the reference's own name do not count. The original removes them from the
    # list it iterates over, which skips the class after each one removed; a score to the digit keeps that.
    for name in named:
        if name in reference and name != reference:
            named.remove(name)
    return 1 / len(named) if reference in named else 0.0
