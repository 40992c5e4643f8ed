"""LongBench's `code_sim_score`: similarity of one line of code."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """`fuzz.ratio` of the first code line and the reference, 0 to 1 in steps of 0.01.

    `fuzzywuzzy` computes this with difflib, unless python-Levenshtein is installed: then it silently
    turns to another ratio. difflib itself is asked here, so that the score never depends on that.
    """
    return round(100 * SequenceMatcher(None, first_code_line(prediction), reference).ratio()) / 100


def first_code_line(prediction: str) -> str:
    """The first line that looks like neither a comment nor a code fence; empty where there is none."""
    for line in prediction.lstrip("\n").split("\n"):
        if not any(mark in line for mark in ("`", "#", "//")):
            return line
    return ""
