"""Token F1 of an answer, as SQuAD defines it."""

from __future__ import annotations

import logging
import re
import string
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from lazybench.metrics.registry import metric

if TYPE_CHECKING:
    import jieba

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# LongBench's own list: it leaves out some common marks, `《` among them.
_CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】"
    "〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_NO_CHINESE_PUNCTUATION = str.maketrans("", "", string.punctuation + _CHINESE_PUNCTUATION)


@metric()
def qa_f1(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench's `qa_f1_score`: F1 over lower-cased words without ASCII punctuation and articles, 0 to 1."""
    return _token_f1(_words(prediction), _words(reference))


def _token_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two bags of tokens; 0 where they share none."""
    shared = sum((Counter(prediction) & Counter(reference)).values())
    if shared == 0:
        return 0.0
    precision = shared / len(prediction)
    recall = shared / len(reference)
    return 2 * precision * recall / (precision + recall)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


@metric(needs="jieba")
def qa_f1_zh(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench's `qa_f1_zh_score`: F1 over jieba's words, lower-cased, without punctuation and white space, 0 to 1."""
    return _token_f1(_chinese_words(prediction), _chinese_words(reference))


def _chinese_words(text: str) -> list[str]:
    normalized = ("".join(word.lower().translate(_NO_CHINESE_PUNCTUATION).split()) for word in segment(text))
    return [word for word in normalized if word]


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
