"""Metrics that look for a class, a number, a line of code or given words in a prediction."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from types import ModuleType
from warnings import catch_warnings, simplefilter

from lazybench.errors import LazyBenchError
from lazybench.metrics.registry import metric


@metric
def classification(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench's `classification_score`: 1 / (classes in the prediction) if the reference is one, else 0.

    Raises:
        LazyBenchError: `all_classes` is missing.
    """
    if all_classes is None:
        raise LazyBenchError("classification needs the class names in 'all_classes', and there are none")
    named = [name for name in all_classes if name in prediction]
    # Classes within the reference's name do not count. The original removes them from the list that it iterates over,
    # and so skips the class after each; scores equal to the digit need the same.
    for name in named:
        if name in reference and name != reference:
            named.remove(name)
    return 1 / len(named) if reference in named else 0.0


@metric
def count(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench's `count_score`: share of the prediction's numbers that equal the reference digit by digit, or 0."""
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


@metric
def retrieval(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench's `retrieval_score`: `count` against the number in a reference such as `Paragraph 7`."""
    return _numbered(prediction, reference, "Paragraph ")


@metric
def retrieval_zh(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench's `retrieval_zh_score`: `count` against the number in a reference such as `段落7`."""
    return _numbered(prediction, reference, "段落")


def _numbered(prediction: str, reference: str, word: str) -> float:
    """Score by `count` against the number after `word` in the reference; `LazyBenchError` if there is none."""
    match = re.search(rf"{word}(\d+)", reference)
    if match is None:
        raise LazyBenchError(f"the reference must read '{word}<number>', not {reference!r}")
    return count(prediction, match[1], None)


@metric
def code_sim(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench's `code_sim_score`: `fuzzywuzzy`'s ratio of the first code line and the reference, 0 to 1."""
    return _fuzz().ratio(_first_code_line(prediction), reference) / 100


@cache
def _fuzz() -> ModuleType:
    """Import `fuzzywuzzy.fuzz` with difflib, as LongBench has it: python-Levenshtein would give another ratio."""
    with catch_warnings():
        simplefilter("ignore")  # its advice to install python-Levenshtein
        from fuzzywuzzy import fuzz
    fuzz.SequenceMatcher = SequenceMatcher
    return fuzz


@metric
def code_sim_indel(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """`code_sim` with the Indel ratio, which `fuzzywuzzy` gives where python-Levenshtein is installed.

    Reported beside LongBench's own `code_sim`, with which it disagrees on many lines.
    """
    from rapidfuzz.fuzz import ratio

    return round(ratio(_first_code_line(prediction), reference)) / 100


def _first_code_line(prediction: str) -> str:
    """Return the first line that looks like neither a comment nor a code fence; empty if there is none."""
    lines = prediction.lstrip("\n").split("\n")
    return next((line for line in lines if not re.search("[`#]|//", line)), "")


@metric
def choice(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench v2's `extract_answer`: 1 if the answer that the prediction gives is the reference, `A` to `D`, else 0.

    It looks for `The correct answer is (A)`, and if there is none for `The correct answer is A`.
    """
    text = prediction.replace("*", "")
    given = re.search(r"The correct answer is \(([A-D])\)", text) or re.search(r"The correct answer is ([A-D])", text)
    return float(given is not None and given[1] == reference)


@metric
def string_match_part(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """RULER's `string_match_part`: 1 if the reference is in the prediction, else 0.

    Case and white space around the prediction do not count, and its control characters are line breaks, as in RULER.
    """
    text = re.sub(r"[\x00-\x1f]", "\n", prediction.strip()).strip().lower()
    return float(reference.lower() in text)


@metric
def string_match_all(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """RULER's `string_match_all` of one reference; the score of a record is the mean over its references."""
    return string_match_part(prediction, reference, all_classes)
