"""Generated records of the 16 English LongBench datasets, so that everything runs with no download."""

from lazybench.data.sample.records import DATASETS, LABEL, MAX_TOKENS, MIN_TOKENS, estimate_tokens, load

__all__ = ["DATASETS", "LABEL", "MAX_TOKENS", "MIN_TOKENS", "estimate_tokens", "load"]
