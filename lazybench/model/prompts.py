"""Builds prompts as LongBench's official pipeline does, to the token, and says what of them a method may shorten."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from string import Formatter

import torch
from transformers import PreTrainedTokenizerBase

from lazybench.config import ModelConfig
from lazybench.data import DatasetFacts, Record
from lazybench.errors import LazyBenchError, RecordFailure, first_line

# RepoBench's files are Python or Java, and each stands under its path. The one to complete is the last; in LongBench's
# own records it has no path, and begins with its imports like any other.
_PATH = r"^[\w./@+-]*\w\.(?:py|java)\r?$"
_FILE = re.compile(_PATH, re.MULTILINE)
_BEGINNING = re.compile(rf"(?:{_PATH}\n)?^(?:package|import|from)\b", re.MULTILINE)
# Chat templates that write today's date write this one, Llama's usual: a prompt must not change from day to day. What
# stands in front of a template takes the place of the function that such a one calls.
_DAY, _CODES = datetime(2024, 7, 26), ("%Y", "%y", "%m", "%d", "%B", "%b", "%A", "%a", "%H", "%M", "%S")
_DATED = "".join(f"|replace('{code}', '{_DAY.strftime(code)}')" for code in _CODES)
_DATE = f"{{%- macro strftime_now(form) -%}}{{{{ form{_DATED} }}}}{{%- endmacro %}}\n"


@dataclass(frozen=True)
class Prompt:
    """A tokenised prompt and what it was made of."""

    ids: torch.Tensor  # token ids, int64 (1, tokens), on the CPU
    record: Record  # the record it asks about
    builder: "PromptBuilder"  # what built it, to build it again from another context or text
    text: str  # the dataset's prompt, filled in and truncated, without a chat wrapper and an answer's prefix
    cut: int | None = None  # where in `text` the middle was cut out; None where nothing was

    def with_context(self, context: str) -> "Prompt":
        """The same question about another context, truncated and tokenised anew."""
        return self.builder.build(replace(self.record, context=context))

    def with_text(self, text: str) -> "Prompt":
        """The same prompt with other words, wrapped and tokenised anew, nothing of it cut out."""
        return self.builder.finish(self.record, text)


@dataclass(frozen=True)
class PromptBuilder:
    """Fills in, truncates, wraps and tokenises the prompts of one dataset."""

    tokenizer: PreTrainedTokenizerBase  # of the model under test
    model: ModelConfig  # its settings: `limit` and `chat` matter here
    facts: DatasetFacts  # the prompt, whether it may be truncated and is wrapped as chat, and what ends it behind that

    def build(self, record: Record) -> Prompt:
        """The prompt of `record`.

        Raises:
            RecordFailure: the tokenizer or the chat template does not take it.
        """
        try:
            text = self.facts.prompt.format(context=record.context, input=record.input)
            return self.finish(record, *(self._truncate(text) if self.facts.truncate else (text,)))
        except Exception as error:  # a tokenizer or a template may raise anything
            raise RecordFailure(f"its prompt cannot be built: {first_line(error)}") from error

    def tokens(self, context: str, query: str) -> int:
        """The tokens of the whole prompt of a record with this context and this input."""
        return self.build(Record("", self.facts.name, query, context, (), None, 0)).ids.shape[1]

    def finish(self, record: Record, text: str, cut: int | None = None) -> Prompt:
        """The prompt of a text that is filled in and short enough: wrapped as chat where that is due, with the
        answer's prefix behind it, and tokenised; see `Prompt`.
        """
        return Prompt(torch.tensor([self._encode(self.wrapped(record, text))]), record, self, text, cut)

    def wrapped(self, record: Record, text: str) -> str:
        """What of a text is tokenised: with the chat wrapper and the answer's prefix."""
        wrapped = self._wrap(text) if self.facts.chat else text
        return wrapped + self.facts.answer_prefix.format(input=record.input)

    def round_trip(self, text: str) -> str:
        """`text` as truncation gives it back: tokenised, and decoded without special tokens."""
        return self._decode(self._encode(text))

    def _truncate(self, text: str) -> tuple[str, int | None]:
        """The first and the last half of the ids, decoded without special tokens, and where the middle was cut out."""
        ids = self._encode(text)
        if len(ids) <= self.model.limit:
            return text, None
        half = int(self.model.limit / 2)
        start, end = self._decode(ids[:half]), self._decode(ids[-half:])
        return start + end, len(start)

    def _wrap(self, text: str) -> str:
        if self.model.chat is None:
            return text
        if self.model.chat != "template":
            return self.model.chat.replace("{prompt}", text)
        said, template = [{"role": "user", "content": text}], self.tokenizer.get_chat_template()
        template = _DATE * ("strftime_now" in template) + template
        return self.tokenizer.apply_chat_template(
            said, chat_template=template, tokenize=False, add_generation_prompt=True
        )

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _encode(self, text: str) -> list[int]:
        text.encode("utf-8")  # of a lone surrogate it says what is wrong, which tokenizers do not
        ids = self.tokenizer(text, verbose=False).input_ids
        return ids[self.doubled(text, ids) :]

    def doubled(self, text: str, ids: list[int]) -> bool:
        """Whether both the tokenizer and a chat template put a BOS before a text; a prompt has exactly one."""
        beginning = self.tokenizer.bos_token
        return bool(beginning) and text.startswith(beginning) and ids[:2] == [self.tokenizer.bos_token_id] * 2


def build_all(
    tokenizer: PreTrainedTokenizerBase, model: ModelConfig, facts: Mapping[str, DatasetFacts], records: Iterable[Record]
) -> dict[tuple[str, str], Prompt]:
    """Build the prompts of records, by their keys; `LazyBenchError` naming the first that cannot be built."""
    prompts = {}
    for record in records:
        try:
            prompts[record.key] = PromptBuilder(tokenizer, model, facts[record.dataset]).build(record)
        except RecordFailure as failure:
            raise LazyBenchError(f"{record.dataset} {record.id}: {failure}") from failure
    return prompts


def before_continued(record: Record, facts: DatasetFacts) -> int:
    """Length of that part of the record's context which its answer does not continue, in characters.

    The last file of a context begins with the first import behind the last path, and with the path itself where that
    stands right above it. Without an import it is all from the last path on, and without a path all of the context.
    When in doubt more is left whole. The line break before the part belongs to it.
    """
    if facts.continues is None or (facts.continues == "last_file" and record.input.strip()):
        return len(record.context)
    files = list(_FILE.finditer(record.context))
    if facts.continues == "context" or not files:
        return 0
    beginning = _BEGINNING.search(record.context, files[-1].start())
    return max(0, (beginning or files[-1]).start() - len("\n"))


def shortenable(prompt: Prompt) -> list[tuple[int, int]]:
    """Where in `prompt.text` the parts of the context lie that were not cut out and that the answer does not continue.

    Returns:
        starts and ends in order, one pair for each `{context}` of the dataset's prompt that something is left of.
        Neither the question nor an instruction is ever within.
    """
    return _context(prompt, before_continued(prompt.record, prompt.builder.facts))


def template_tokens(prompt: Prompt) -> torch.Tensor:
    """Which tokens of a prompt are not its record's context, in whole or in part, bool (tokens,), on the CPU.

    Raises:
        LazyBenchError: the tokenizer does not tell where tokens stand in a text.
    """
    builder, within = prompt.builder, torch.zeros(prompt.ids.shape[1], dtype=torch.bool)
    if not builder.tokenizer.is_fast:
        raise LazyBenchError("method.protect=template: this model's tokenizer tells no places of tokens")
    wrapped, stripped = builder.wrapped(prompt.record, prompt.text), prompt.text.strip()  # as chat templates do
    shift = wrapped.index(stripped) - prompt.text.index(stripped)
    whole = builder.tokenizer(wrapped, return_offsets_mapping=True, verbose=False)
    begin = builder.doubled(wrapped, whole.input_ids)
    first, last = torch.tensor(whole.offset_mapping)[begin : begin + len(within)].T  # ids may be cut at their end
    for start, end in _context(prompt, len(prompt.record.context)):
        within |= (first >= start + shift) & (last <= end + shift) & (first < last)
    return ~within


def _context(prompt: Prompt, length: int) -> list[tuple[int, int]]:
    """Where in `prompt.text` so many first characters of the context lie, as far as they were not cut out."""
    facts, record = prompt.builder.facts, prompt.record
    filled, places = "", []
    for words, field, _, _ in Formatter().parse(facts.prompt):
        filled += words
        if field == "context":
            places.append((len(filled), len(filled) + length))
        filled += "" if field is None else getattr(record, field)
    found = [(_after_cut(prompt, filled, start), _after_cut(prompt, filled, end)) for start, end in places]
    return [(start, end) for start, end in found if start < end]


def _after_cut(prompt: Prompt, filled: str, place: int) -> int:
    """Where in the truncated prompt a place of the filled-in one is; the cut itself if it was cut out."""
    if prompt.cut is None:
        return place
    # A character of several tokens may be cut in two, and take its neighbours with it.
    front, back = prompt.text[: prompt.cut].rstrip("\ufffd"), prompt.text[prompt.cut :].lstrip("\ufffd")
    cut_only = filled.startswith(front) and filled.endswith(back)
    # Else the tokenizer does not give text back as it was: special tokens in a record, lower case, other spaces.
    before, behind = (
        len(part if cut_only else prompt.builder.round_trip(part)) for part in (filled[:place], filled[place:])
    )
    if before <= len(front):
        return before
    return len(prompt.text) - behind if behind <= len(back) else prompt.cut
