"""A tokenizer that a model's config names, for weights that come without one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lazybench.data.hub import OutOfReach
from lazybench.errors import LazyBenchError
from lazybench.model.instance import why_not_made

_KEY = "model.tokenizer"


def make(settings: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer that a config's `model.tokenizer` describes.

    Raises:
        LazyBenchError: `_target_` does not name what makes a tokenizer, or it refuses its arguments.
    """
    target = settings.get("_target_")
    if not target:
        raise LazyBenchError(f"{_KEY} has no _target_: name a function such as lazybench.model.xgen_tokenizer.build")
    try:
        tokenizer = instantiate(dict(settings), _convert_="all")
    except InstantiationException as error:
        kind = OutOfReach if isinstance(error.__cause__, OutOfReach) else LazyBenchError
        raise kind(why_not_made(_KEY, error)) from error
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise LazyBenchError(f"{_KEY}._target_={target} does not make a tokenizer of transformers")
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
