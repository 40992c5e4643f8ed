"""Prompt compression: Selective Context (Li et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transformers import PreTrainedModel

from lazybench.config import ModelConfig
from lazybench.decoding import Decoder
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.language_model import load_model, load_tokenizer
from lazybench.methods.base import Method, Output
from lazybench.prompts import Prompt
from lazybench.selective_context import UNITS, Compressor, Scorer
from lazybench.selective_context.phrases import phrase_parser
from lazybench.suggest import suggest

_WINDOWS = ("sentence", "long")


@dataclass
class PromptCompression(Method):
    """Leaves out the least informative parts of a record's context, never of its question or instructions.

    The whole context is compressed, however long it is, and the prompt is then built anew from what is left and
    truncated as ever: more of a long context reaches the model. All of that is timed. `prompt_computed` is the
    tokens of the new prompt over those of the original prompt, at most 1; where both are truncated it is 1.

    The original (`unit=phrase windows=sentence faithful_whitespace=true`, GPT-2 as `scorer`) is one choice of the
    settings.

    Attributes:
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

    # Sentence by sentence through the whole context: 4 to 25 times were measured (README).
    prefills: ClassVar[float] = 20.0

    unit: str = "sentence"
    ratio: float = 0.5
    scorer: str | None = None
    windows: str = "sentence"
    window_tokens: int | None = None
    faithful_whitespace: bool = False

    def __post_init__(self) -> None:
        for key, value, choices in (("unit", self.unit, UNITS), ("windows", self.windows, _WINDOWS)):
            if value not in choices:
                raise LazyBenchError(f"method.{key}={value}: {suggest(str(value), choices)}")
        if not isinstance(self.ratio, int | float) or isinstance(self.ratio, bool) or not 0 <= self.ratio < 1:
            raise LazyBenchError(f"method.ratio={self.ratio} must be a number, at least 0 and below 1")
        if self.window_tokens is not None and (not isinstance(self.window_tokens, int) or self.window_tokens < 1):
            raise LazyBenchError(f"method.window_tokens={self.window_tokens} must be null or a whole number above 0")
        if not isinstance(self.faithful_whitespace, bool):
            raise LazyBenchError(f"method.faithful_whitespace={self.faithful_whitespace} must be true or false")
        self._compressor = Compressor(self.unit, self.ratio, self.windows == "sentence", self.faithful_whitespace)
        self._scorer: Scorer | None = None

    def prepare(self, model: PreTrainedModel) -> None:
        if self.unit == "phrase":
            phrase_parser()
        if self.scorer is not None:
            self._scorer = _load_scorer(self.scorer, model, self.window_tokens)

    def generate(self, prompt: Prompt, decode: Decoder, seed: int) -> Output:
        scorer = self._scorer or Scorer(decode.model, prompt.builder.tokenizer, self.window_tokens)
        context = self._compressor.compress(prompt.record.context, scorer)
        if prompt.record.context.strip() and not context.strip():
            raise RecordFailure("empty prompt: nothing of the context is left")
        compressed = prompt.with_context(context)
        computed = min(1.0, compressed.ids.shape[1] / prompt.ids.shape[1])
        return Output(decode(compressed.ids), prompt_computed=computed)


def _load_scorer(path: str, under_test: PreTrainedModel, window_tokens: int | None) -> Scorer:
    # limit is about prompts, which a scorer never gets.
    config = ModelConfig(name="scorer", path=path, device=str(under_test.device), limit=2)
    try:
        return Scorer(load_model(config), load_tokenizer(config), window_tokens)
    except LazyBenchError as error:
        raise LazyBenchError(f"method.scorer: {error}") from error
