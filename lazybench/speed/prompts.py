"""Prompts of text of a given length: what LazyLLM revives depends on real attention, so no random ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from lazybench.config import SpeedConfig
from lazybench.data import load_facts, sample
from lazybench.errors import LazyBenchError
from lazybench.model.prompts import Prompt, PromptBuilder

_DATASET = "gov_report"
_SPARE = 32  # tokens: truncation decodes, joins and tokenises anew, which may change the count a little


def prompt_of(length: int, tokenizer: PreTrainedTokenizerBase, config: SpeedConfig) -> Prompt:
    """A summarization prompt of exactly `length` tokens, about `config.text` or, without one, a generated report.

    Raises:
        LazyBenchError: the text is not there, or too short.
    """
    record = sample.load(_DATASET, 1, 0, min(sample.MAX_TOKENS, max(2 * length, sample.MIN_TOKENS)))[0]
    if config.text is not None:
        try:
            record = replace(record, context=Path(config.text).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise LazyBenchError(f"text={config.text} cannot be read: {error}") from None
    # No more context than the prompt can hold: methods that work on the context are timed on the same text.
    ids = tokenizer(record.context, add_special_tokens=False, verbose=False).input_ids[: length + _SPARE]
    record = replace(record, context=tokenizer.decode(ids))
    model = replace(config.model, limit=length + _SPARE, chat=None)
    prompt = PromptBuilder(tokenizer, model, load_facts({})[_DATASET]).build(record)
    if prompt.ids.shape[1] < length:
        source = "a sample text can have" if config.text is None else f"text={config.text} has"
        raise LazyBenchError(f"lengths: {length} tokens are more than {source}, {prompt.ids.shape[1]}")
    return replace(prompt, ids=prompt.ids[:, :length])
