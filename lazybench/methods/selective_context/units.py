"""Values of units of text."""

from __future__ import annotations

import numpy as np

from lazybench.methods.selective_context.information import ScoredTokens


def unit_values(ends: np.ndarray, tokens: ScoredTokens) -> np.ndarray:
    """Mean self-information of each unit.

    A token counts in the unit it lies in. One that reaches across borders is shared, as in the original: each unit
    that it completes gets an equal part of its information, and the one it ends inside gets none.

    The units of the same text end at `ends`, int64 (units,), rising. The values are float64 (units,), NaN for a unit
    without tokens.
    """
    previous = np.concatenate([[0], tokens.ends[:-1]])
    first = np.searchsorted(ends, previous, side="right")
    completed = np.searchsorted(ends, tokens.ends, side="right") - first
    # The bytes of one character all end where it does; the last unit takes what lies behind it.
    inside = np.minimum(np.searchsorted(ends, tokens.ends), len(ends) - 1)
    first = np.where(completed > 0, first, inside)
    shares = np.maximum(completed, 1)
    within = np.arange(shares.sum()) - np.repeat(np.cumsum(shares) - shares, shares)
    units = np.repeat(first, shares) + within
    total = np.bincount(units, weights=np.repeat(tokens.information / shares, shares), minlength=len(ends))
    count = np.bincount(units, minlength=len(ends))
    return np.divide(total, count, out=np.full(len(ends), np.nan), where=count > 0)
