"""Selective Context (Li et al. 2023, EMNLP): leaves out the parts of a text that a language model expects.

A text is handled as borders: a list of units is the sorted positions at which they end, and each reaches from the
end of the one before. White space before a unit is thereby its own, as in the original's phrases.
"""

from lazybench.methods.selective_context.compress import UNITS, Compressor
from lazybench.methods.selective_context.information import Scorer

__all__ = ["UNITS", "Compressor", "Scorer"]
