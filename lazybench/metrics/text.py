"""Metrics of running text: token F1 of an answer, as SQuAD defines it, and ROUGE-L of a summary."""

import logging
import re
import string
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import cache
from traceback import walk_stack
from typing import TYPE_CHECKING

from lazybench.metrics.registry import metric

if TYPE_CHECKING:
    import jieba

# `rouge` is recursive, and LongBench's code scores 0 for texts that need more frames than Python's default limit leaves
# to its script. The same number of frames is left here, at any depth of the caller. (Python 3.11 counts the caller's C
# frames, too, which are invisible here: it leaves a handful less.)
_OFFICIAL_LIMIT = 1000
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# LongBench's own list, without some common marks such as `《`.
_CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】"
    "〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_NO_CHINESE_PUNCTUATION = str.maketrans("", "", string.punctuation + _CHINESE_PUNCTUATION)


@metric
def qa_f1(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench's `qa_f1_score`: F1 over lower-cased words without ASCII punctuation and articles, 0 to 1."""
    return _token_f1(_words(prediction), _words(reference))


def _token_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    shared = sum((Counter(prediction) & Counter(reference)).values())
    if shared == 0:
        return 0.0
    precision = shared / len(prediction)
    recall = shared / len(reference)
    return 2 * precision * recall / (precision + recall)


def _words(text: str) -> list[str]:
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_NO_PUNCTUATION)).split()


@metric
def qa_f1_zh(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """LongBench's `qa_f1_zh_score`: F1 over jieba's words, lower-cased, without punctuation and white space, 0 to 1."""
    return _token_f1(_chinese_words(prediction), _chinese_words(reference))


def _chinese_words(text: str) -> list[str]:
    words = ("".join(word.lower().translate(_NO_CHINESE_PUNCTUATION).split()) for word in _tokenizer().lcut(text))
    return [word for word in words if word]


@cache
def _tokenizer() -> "jieba.Tokenizer":
    """Return jieba's tokenizer with its default dictionary."""
    # jieba 0.42.1 warns of its own escapes and of pkg_resources when it is imported.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba
    jieba.setLogLevel(logging.WARNING)
    # Built in memory: jieba's own shares a cache file in the temporary folder with all users, and its global tokenizer
    # may have a caller's words.
    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


@metric
def rouge(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """Sentence-split ROUGE-L F of the `rouge` package, 0 to 1 (LongBench's `rouge_score`).

    0 if `rouge` fails, as it does for an empty prediction.
    """
    return _rouge_l(prediction, reference, official_depth=3)  # the script, `scorer`, `rouge_score`


@metric
def rouge_zh(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """`rouge` over jieba's words, 0 to 1 (LongBench's `rouge_zh_score`)."""
    prediction, reference = (" ".join(_tokenizer().lcut(text)) for text in (prediction, reference))
    return _rouge_l(prediction, reference, official_depth=4)  # LongBench's `rouge_zh_score` calls its `rouge_score`


@metric
def rouge_score_l(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """ROUGE-L F of the `rouge-score` package, 0 to 1: without stemming and without splitting sentences.

    Reported beside LongBench's own `rouge`, with which it disagrees.
    """
    from rouge_score.rouge_scorer import RougeScorer

    return float(RougeScorer(["rougeL"]).score(reference, prediction)["rougeL"].fmeasure)


def _rouge_l(prediction: str, reference: str, official_depth: int) -> float:
    """Return ROUGE-L F; `official_depth` is the number of frames below the metric in LongBench's script."""
    from rouge import Rouge

    scorer = Rouge(metrics=["rouge-l"])
    before, depth = sys.getrecursionlimit(), len(list(walk_stack(sys._getframe())))
    try:
        sys.setrecursionlimit(depth + _OFFICIAL_LIMIT - official_depth)
        return scorer.get_scores([prediction], [reference], avg=True)["rouge-l"]["f"]
    except (ValueError, RecursionError):
        return 0.0
    finally:
        sys.setrecursionlimit(before)
