"""Prompt compression: Selective Context (Li et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from lazybench.errors import RecordFailure
from lazybench.methods.base import Method, Output
from lazybench.methods.selective_context import UNITS, Compressor, Scorer, phrase_parser
from lazybench.methods.shared import COUNT_OR_NULL, FLAG, MODEL, RATIO, load_second, one_of, setting
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt, before_continued, shortenable

# Sentence by sentence on a GPU, where each takes about a decoding step: some 140 sentences in 3,500 tokens, and nearly
# three times as many in LongBench's whole contexts. On a CPU 1.4 to 2 and 4 to 25 times were measured.
_PREFILLS = {"prompt": 15.0, "record": 40.0}
_NAMES = {"prompt": "prompt_compression", "record": "prompt_compression_record"}


@dataclass
class PromptCompression(Method):
    """Leaves out the least informative parts of a record's context, never of its question or instructions.

    By default what is compressed is the context as the unmodified model would see it: the prompt is filled in and
    truncated, and what is then left of the context is compressed where it stands. With `scope=record` it is the whole
    context, however long it is, and the prompt is then built and truncated anew: more of a long context reaches the
    model, at several times the price. The two have different names.

    What a completion of code continues stays whole in both: in `lcc` all of the context, in `repobench-p` the last
    file, `input` or the end of the context. A dataset of one's own states it as the fact `continues`.

    All of it is timed: finding the context, scoring, building and tokenising the new prompt. `prompt_computed` is the
    tokens of the new prompt over those of the original one, at most 1. What the scorer computes counts in the times
    alone, even where it is the model under test: the answer attends to none of it.

    The original is `unit=phrase windows=sentence faithful_whitespace=true` with GPT-2 as `scorer`.

    Attributes:
        scope: `prompt` compresses the context as it was truncated, `record` the record's whole context.
        unit: what is removed as a whole: `phrase` (needs spaCy), `sentence` or `token`.
        ratio: percentile, as a fraction, of the units' mean self-information; units strictly below it are removed.
            In [0, 1).
        scorer: hub id, local folder or `.gguf` file of a causal language model that scores; None means the model
            under test.
        windows: `sentence` scores each sentence by itself, `long` scores the text in windows that do not overlap.
        window_tokens: tokens of a window at most; None means as many as the scorer has positions. A sentence that is
            longer is scored in several.
        faithful_whitespace: make each run of white space one space, as the original does; else newlines and
            indents stay with what is kept.
    """

    scope: str = setting("prompt", one_of(list(_NAMES)))
    unit: str = setting("sentence", one_of(UNITS))
    ratio: float = setting(0.5, RATIO)
    scorer: str | None = setting(None, MODEL)
    windows: str = setting("sentence", one_of(("sentence", "long")))
    window_tokens: int | None = setting(None, COUNT_OR_NULL)
    faithful_whitespace: bool = setting(False, FLAG)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._compressor = Compressor(self.unit, self.ratio, self.windows == "sentence", self.faithful_whitespace)
        self._scorer: Scorer | None = None
        if self.name in _NAMES.values():
            self.name = _NAMES[self.scope]

    @property
    def prefills(self) -> float:
        return _PREFILLS[self.scope]

    def pruning(self, share: float) -> PromptCompression:
        """The same with this share of the units removed, whatever their tokens are."""
        return replace(self, ratio=round(share, 4))

    def prepare(self, model: PreTrainedModel) -> None:
        if self.unit == "phrase":
            phrase_parser()
        if self.scorer is not None:
            self._scorer = Scorer(*load_second("scorer", self.scorer, model), self.window_tokens)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        scorer = self._scorer or Scorer(decode.model, prompt.builder.tokenizer, self.window_tokens)
        compressed = self._prompt(prompt, scorer) if self.scope == "prompt" else self._record(prompt, scorer)
        computed = min(1.0, compressed.ids.shape[1] / prompt.ids.shape[1])
        return Output(decode(compressed.ids), prompt_computed=computed)

    def _prompt(self, prompt: Prompt, scorer: Scorer) -> Prompt:
        """The truncated prompt with its context compressed in place."""
        text = prompt.text
        for start, end in reversed(shortenable(prompt)):  # places before `start` stay true
            text = text[:start] + self._compressed(text[start:end], scorer) + text[end:]
        return prompt if text == prompt.text else prompt.with_text(text)

    def _record(self, prompt: Prompt, scorer: Scorer) -> Prompt:
        """The prompt of the whole context, compressed."""
        context, end = prompt.record.context, before_continued(prompt.record, prompt.builder.facts)
        compressed = self._compressed(context[:end], scorer) + context[end:]
        return prompt if compressed == context else prompt.with_context(compressed)

    def _compressed(self, text: str, scorer: Scorer) -> str:
        left = self._compressor.compress(text, scorer)
        if text.strip() and not left.strip():
            raise RecordFailure("empty prompt: nothing of the context is left")
        return left
