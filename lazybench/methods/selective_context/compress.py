"""Removes the units of a text that say least."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lazybench.methods.selective_context.information import ScoredTokens, Scorer
from lazybench.methods.selective_context.phrases import phrase_ends
from lazybench.methods.selective_context.sentences import flatten, sentence_spans
from lazybench.methods.selective_context.units import unit_values

UNITS = ("phrase", "sentence", "token")

# What the original puts between sentences: its tokens lose the space there.
_GLUE = {"phrase": " ", "sentence": " ", "token": ""}


@dataclass(frozen=True)
class Compressor:
    """Selective Context on one text.

    Attributes:
        unit: what is kept or removed as a whole, one of `UNITS`.
        ratio: units whose value is strictly below this percentile of the text's units (as a fraction) are removed.
        by_sentence: score each sentence by itself, as the original does; else the text in windows.
        flat: turn each run of white space into one space first, as the original does; else what is kept is kept
            byte for byte.
    """

    unit: str
    ratio: float
    by_sentence: bool
    flat: bool

    def compress(self, text: str, scorer: Scorer) -> str:
        """`text` without its least informative units; a text without sentences as it is."""
        full = text
        text, spans = flatten(full, _GLUE[self.unit]) if self.flat else (full, sentence_spans(full))
        tokens = scorer.score(text, spans if self.by_sentence else [(0, len(text))] if spans else [])
        if not tokens.ends.size:
            return full
        ends = self._ends(text, spans, tokens)
        values = unit_values(ends, tokens.visible(text) if self.unit == "phrase" else tokens)
        # A unit without a value stays, in the original too.
        kept = ~(values < np.nanpercentile(values, self.ratio * 100))
        return self._join(text, ends, kept)

    def _ends(self, text: str, spans: list[tuple[int, int]], tokens: ScoredTokens) -> np.ndarray:
        if self.unit == "phrase":
            return np.array(phrase_ends(text, spans))
        if self.unit == "sentence":
            return np.array([end for _, end in spans])
        return np.unique(tokens.ends)

    def _join(self, text: str, ends: np.ndarray, kept: np.ndarray) -> str:
        borders = [0, *ends[:-1], len(text)]
        units = [text[start:end] for start, end in pairwise(borders)]
        if self.flat and self.unit == "sentence":
            # The original leaves the space where a sentence was.
            return " ".join(unit.strip() if keep else "" for unit, keep in zip(units, kept, strict=True))
        return "".join(unit for unit, keep in zip(units, kept, strict=True) if keep)
