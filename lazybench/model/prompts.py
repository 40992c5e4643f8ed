"""Build prompts as LongBench's official code does, to the token, and locate the context in them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from string import Formatter

import torch
from transformers import PreTrainedTokenizerBase

from lazybench.config import ModelConfig
from lazybench.data import DatasetConfig, Record
from lazybench.errors import RecordFailure, first_line, prefix_errors

# Tags that open and close a thought in prompts of reasoning models: <think>, <seed:think>, [THINK].
_THOUGHT = re.compile(r"[<\[](/?)(?:\w+:)?think(?:ing)?[>\]]", re.IGNORECASE)
# Chat templates write this date, Llama's default, as today's: a prompt must not change from day to day. The macro, put
# before a template, replaces the function that the template calls; transformers passes no function to templates.
_DAY, _CODES = datetime(2024, 7, 26), ("%Y", "%y", "%m", "%d", "%B", "%b", "%A", "%a", "%H", "%M", "%S")
_DATED = "".join(f"|replace('{code}', '{_DAY.strftime(code)}')" for code in _CODES)
_DATE = f"{{%- macro strftime_now(form) -%}}{{{{ form{_DATED} }}}}{{%- endmacro %}}\n"


@dataclass(frozen=True)
class Prompt:
    """A tokenised prompt and its source."""

    ids: torch.Tensor  # token ids, int64 (1, tokens), on the CPU
    record: Record
    builder: "PromptBuilder"
    text: str  # the dataset's prompt, filled in and truncated, without chat wrapper and answer prefix
    cut: int | None = None  # index in `text` at which truncation removed the middle; None if it is whole

    def with_context(self, context: str) -> "Prompt":
        """Build the prompt of the same question about another context, truncated and tokenised again."""
        return self.builder.build(replace(self.record, context=context))

    def with_text(self, text: str) -> "Prompt":
        """Build the prompt of another text: wrap and tokenise it, without truncation."""
        return self.builder.finish(self.record, text)


@dataclass(frozen=True)
class PromptBuilder:
    """Fill in, truncate, wrap and tokenise the prompts of one dataset."""

    tokenizer: PreTrainedTokenizerBase  # of the model under test
    model: ModelConfig  # of which `limit`, `chat` and `template` are used
    dataset_config: DatasetConfig

    def build(self, record: Record) -> Prompt:
        """Build the prompt of `record`; `RecordFailure` if the tokenizer or the chat template refuses it."""
        try:
            text = self.dataset_config.prompt.format(context=record.context, input=record.input)
            return self.finish(record, *(self._truncate(text) if self.dataset_config.truncate else (text,)))
        except Exception as error:  # a tokenizer or a template may raise anything
            raise RecordFailure(f"its prompt cannot be built: {first_line(error)}") from error

    def finish(self, record: Record, text: str, cut: int | None = None) -> Prompt:
        """Wrap and tokenise a text that is filled in and truncated; `cut` as in `Prompt`."""
        return Prompt(torch.tensor([self._encode(self.wrapped(record, text))]), record, self, text, cut)

    def wrapped(self, record: Record, text: str) -> str:
        """Add the chat wrapper and the answer prefix to a text."""
        chat = self.model.chat if self.dataset_config.chat else None
        if chat == "template":
            messages, template = [{"role": "user", "content": text}], self.tokenizer.get_chat_template()
            template = _DATE * ("strftime_now" in template) + template
            text = self.tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=True, **self.model.template
            )
        elif chat is not None:
            text = chat.replace("{prompt}", text)
        return text + record.answer_prefix

    def warnings(self, record: Record) -> Iterator[str]:
        """Yield warnings about how prompts end; none if the prompt of `record` cannot be built."""
        with suppress(Exception):  # as in `build`
            text = self.wrapped(record, "")
            *_, last = [None, *_THOUGHT.finditer(text)]
            if last and not last[1]:
                yield (
                    f"warning: prompts end inside a thought, after {last[0]}, so thoughts fill the answers: turn them "
                    "off, in many templates by +model.template.enable_thinking=false"
                )
            if self._encode(text)[-1] == self.tokenizer.eos_token_id:
                yield (
                    f"warning: prompts end with {self.tokenizer.eos_token}, as a finished text does: take it out of "
                    "post_processor in the tokenizer's tokenizer.json, or of add_eos_token in tokenizer_config.json"
                )

    def round_trip(self, text: str) -> str:
        """Tokenise `text` and decode it without special tokens, as truncation does."""
        return self._decode(self._encode(text))

    def _truncate(self, text: str) -> tuple[str, int | None]:
        """Keep the first and last half of `limit` ids, decoded, and return the index of the cut; None if all fit."""
        ids = self._encode(text)
        if len(ids) <= self.model.limit:
            return text, None
        half = int(self.model.limit / 2)
        start, end = self._decode(ids[:half]), self._decode(ids[-half:])
        return start + end, len(start)

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _encode(self, text: str) -> list[int]:
        text.encode("utf-8")  # its message names a lone surrogate, unlike tokenizers'
        ids = self.tokenizer(text, verbose=False).input_ids
        return ids[self.has_two_bos(text, ids) :]

    def has_two_bos(self, text: str, ids: list[int]) -> bool:
        """Return whether both the tokenizer and a chat template put a BOS before a text: a prompt must have one."""
        bos = self.tokenizer.bos_token
        return bool(bos) and text.startswith(bos) and ids[:2] == [self.tokenizer.bos_token_id] * 2


def build_all(
    tokenizer: PreTrainedTokenizerBase, model: ModelConfig, configs: Mapping[str, DatasetConfig], records: list[Record]
) -> dict[tuple[str, str], Prompt]:
    """Build the prompts of records by key; `LazyBenchError` names the first record whose prompt cannot be built."""
    prompts = {}
    for record in records:
        with prefix_errors(f"{record.dataset} {record.id}", RecordFailure):
            prompts[record.key] = PromptBuilder(tokenizer, model, configs[record.dataset]).build(record)
    return prompts


def template_tokens(prompt: Prompt) -> torch.Tensor:
    """Return a mask, bool (tokens,) on the CPU, of the prompt's tokens that are not wholly the record's context."""
    builder, is_context = prompt.builder, torch.zeros(prompt.ids.shape[1], dtype=torch.bool)
    wrapped, stripped = builder.wrapped(prompt.record, prompt.text), prompt.text.strip()  # as chat templates do
    shift = wrapped.index(stripped) - prompt.text.index(stripped)
    encoding = builder.tokenizer(wrapped, return_offsets_mapping=True, verbose=False)
    begin = builder.has_two_bos(wrapped, encoding.input_ids)
    # `speed` uses only the first ids of a prompt.
    first, last = torch.tensor(encoding.offset_mapping)[begin : begin + len(is_context)].T
    for start, end in context_spans(prompt):
        is_context |= (first >= start + shift) & (last <= end + shift) & (first < last)
    return ~is_context


def context_spans(prompt: Prompt) -> list[tuple[int, int]]:
    """Return the spans of `prompt.text` that are the record's context, without what truncation cut out.

    Returns:
        starts and ends in order, one pair for each `{context}` of the dataset's prompt that is not cut out whole. No
        question or instruction is inside.
    """
    config, record = prompt.builder.dataset_config, prompt.record
    filled, spans = "", []
    for words, field, _, _ in Formatter().parse(config.prompt):
        filled += words
        if field == "context":
            spans.append((len(filled), len(filled) + len(record.context)))
        filled += "" if field is None else getattr(record, field)
    spans = [(_after_cut(prompt, filled, start), _after_cut(prompt, filled, end)) for start, end in spans]
    return [(start, end) for start, end in spans if start < end]


def _after_cut(prompt: Prompt, filled: str, index: int) -> int:
    """Map an index of the filled-in prompt to the truncated one: to the cut if the character there was cut out."""
    if prompt.cut is None:
        return index
    # A character of several tokens may be cut in two.
    front, back = prompt.text[: prompt.cut].rstrip("\ufffd"), prompt.text[prompt.cut :].lstrip("\ufffd")
    before, after = filled[:index], filled[index:]
    if not (filled.startswith(front) and filled.endswith(back)):
        # The tokenizer changes texts: special tokens in a record, lower case, other spaces.
        before, after = prompt.builder.round_trip(before), prompt.builder.round_trip(after)
    if len(before) <= len(front):
        return len(before)
    return len(prompt.text) - len(after) if len(after) <= len(back) else prompt.cut
