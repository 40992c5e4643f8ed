"""Token F1 of a Chinese answer (LongBench's `qa_f1_zh_score`)."""

from __future__ import annotations

import string
from collections.abc import Sequence

from lazybench.metrics._segment import segment
from lazybench.metrics.qa_f1 import token_f1

# LongBench's own list: it leaves out some common marks, `《` among them.
_CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】"
    "〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation + _CHINESE_PUNCTUATION)


def score(prediction: str, reference: str, all_classes: Sequence[str] | None) -> float:
    """F1 over jieba's words, lower-cased, without punctuation and white space, 0 to 1."""
    return token_f1(_words(prediction), _words(reference))


def _words(text: str) -> list[str]:
    normalized = ("".join(word.lower().translate(_NO_PUNCTUATION).split()) for word in segment(text))
    return [word for word in normalized if word]
