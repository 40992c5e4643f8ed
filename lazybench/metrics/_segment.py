"""Chinese word segmentation, shared by the metrics that need it."""

from __future__ import annotations

import logging
import warnings
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jieba


def segment(text: str) -> list[str]:
    """Cut `text` into words with jieba's default dictionary (accurate mode)."""
    return _tokenizer().lcut(text)


@cache
def _tokenizer() -> jieba.Tokenizer:
    # jieba 0.42.1 warns of its own escapes and of pkg_resources when it is imported.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba
    jieba.setLogLevel(logging.WARNING)
    # Built in memory: jieba would otherwise trust, or write, a cache file that every user of the
    # temporary folder shares; and a dictionary that a caller adds to jieba's global tokenizer stays out.
    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer
