"""A tokenizer that a model's config names, for weights that come without one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lazybench.errors import LazyBenchError
from lazybench.model import instance


def make(settings: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer that a config's `model.tokenizer` describes.

    Raises:
        LazyBenchError: `_target_` does not name what makes a tokenizer, or it refuses its arguments.
    """
    tokenizer = instance.make("model.tokenizer", settings, "a function such as lazybench.model.xgen_tokenizer.build")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise LazyBenchError(
            f"model.tokenizer._target_={settings['_target_']} does not make a tokenizer of transformers"
        )
    return tokenizer


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hex digits that tell a tokenizer from others, wherever its files lie."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        for free in ("truncation", "padding"):  # of the last call, not of the tokenizer
            content.pop(free, None)
    else:
        content = [type(tokenizer).__qualname__, sorted(map(str, tokenizer.get_vocab().items()))]
    text = json.dumps([content, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
