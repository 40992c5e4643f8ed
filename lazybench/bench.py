"""Times a method and the unmodified model on the same records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench import scoring
from lazybench.config import RunConfig
from lazybench.data import data_label
from lazybench.data.record import Record
from lazybench.decoding import Decoder, decoder_for, read
from lazybench.errors import RecordFailure
from lazybench.facts import DatasetFacts
from lazybench.methods.base import Method, Output, answer
from lazybench.methods.baseline import Baseline
from lazybench.out_of_memory import ran_out, release
from lazybench.prompts import Prompt, PromptBuilder
from lazyllm import LazyLLMError

Done = TypeVar("Done")

UNMODIFIED = Baseline("baseline")
# What a row says of an answer; None throughout where there is none.
_MEASURED = (
    "prediction",
    "score",
    "new_tokens",
    "ttft_s",
    "generation_s",
    "baseline_ttft_s",
    "baseline_generation_s",
    "prompt_computed",
    "baseline_prediction",
    "baseline_new_tokens",
    "identical_tokens",
)


@dataclass(frozen=True)
class Pass:
    """One timed answer: the method's output, and seconds to its first and to its last token."""

    output: Output
    ttft_s: float
    generation_s: float


@dataclass(frozen=True)
class Bench:
    """A model, a method, and all that a record needs to be run on them."""

    config: RunConfig
    method: Method
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    facts: dict[str, DatasetFacts]

    def warm_up(self, record: Record) -> None:
        """Untimed runs before any timing."""
        prompt = self.prompt(record)
        try:
            for _ in range(self.config.timing.warmup):
                self.attempt(prompt, lambda: self._both(prompt, new_tokens=2))
        except RecordFailure:
            pass  # its row will say so

    def row(self, record: Record) -> dict[str, Any]:
        """The finished row of one record; one that cannot be run has an `error` and no measurements."""
        prompt = self.prompt(record)
        about = {
            "_id": record.id,
            "dataset": record.dataset,
            "data": data_label(self.config.data),
            "answers": list(record.answers),
            "all_classes": None if record.all_classes is None else list(record.all_classes),
            "length": record.length,
            "prompt_tokens": prompt.ids.shape[1],
        }
        try:
            return about | self.attempt(prompt, lambda: self._measured(prompt))
        except (RecordFailure, LazyLLMError) as failure:
            return about | dict.fromkeys(_MEASURED) | {"error": str(failure)}

    def attempt(self, prompt: Prompt, work: Callable[[], Done]) -> Done:
        """What `work` returns, which is about `prompt`.

        Raises:
            RecordFailure: the model cannot hold the prompt, or memory ran out; whatever was allocated is given back.
        """
        try:
            self.decoder(prompt).check(prompt.ids)
            return work()
        except Exception as error:
            if not ran_out(error):
                raise
        # Only out here is the exception gone, and with it all that it kept alive.
        release()
        raise RecordFailure(f"oom: {prompt.ids.shape[1]} tokens of prompt")

    def prompt(self, record: Record) -> Prompt:
        """The record's prompt."""
        return PromptBuilder(self.tokenizer, self.config.model, self.facts[record.dataset]).build(record)

    def decoder(self, prompt: Prompt) -> Decoder:
        """The decoder with the settings of the prompt's dataset."""
        return decoder_for(self.model, self.facts[prompt.record.dataset], prompt)

    @property
    def is_baseline(self) -> bool:
        """Whether the method is the unmodified model itself."""
        return isinstance(self.method, Baseline)

    def _measured(self, prompt: Prompt) -> dict[str, Any]:
        record, facts = prompt.record, self.facts[prompt.record.dataset]
        if self.model.device.type != "cpu":
            # Kernels are chosen and memory is laid out per shape: one untimed pass of this very shape.
            self._both(prompt, new_tokens=2)
        unmodified, passes = self._both(prompt)
        predictions = [read(done.output.tokens, prompt, self.config.model) for done in passes]
        scores = [scoring.score(facts, text, record.answers, record.all_classes) for text in predictions]
        measured = dict.fromkeys(_MEASURED) | {
            "prediction": predictions[0],
            "score": fmean(scores),
            "new_tokens": len(passes[0].output.tokens),
            "ttft_s": fmean(done.ttft_s for done in passes),
            "generation_s": fmean(done.generation_s for done in passes),
            "prompt_computed": fmean(done.output.prompt_computed for done in passes),
        }
        if unmodified is not None:
            tokens = unmodified.output.tokens
            measured |= {
                "baseline_ttft_s": unmodified.ttft_s,
                "baseline_generation_s": unmodified.generation_s,
                "baseline_prediction": read(tokens, prompt, self.config.model),
                "baseline_new_tokens": len(tokens),
                "identical_tokens": fmean(_identical(done.output.tokens, tokens) for done in passes),
            }
        if len(passes) > 1:
            measured["repeats"] = [
                {
                    "prediction": text,
                    "score": score,
                    "new_tokens": len(done.output.tokens),
                    "ttft_s": done.ttft_s,
                    "generation_s": done.generation_s,
                }
                for text, score, done in zip(predictions, scores, passes, strict=True)
            ]
        return measured

    def _both(self, prompt: Prompt, new_tokens: int | None = None) -> tuple[Pass | None, list[Pass]]:
        """The unmodified model's pass, and right after it the method's, one a seed."""
        decode = self.decoder(prompt)
        if new_tokens is not None:
            decode.max_new_tokens = new_tokens
        paired = self.config.timing.paired and not self.is_baseline
        unmodified = self._unmodified(prompt, decode) if paired else None
        passes = [timed(self.method, prompt, decode, seed) for seed in range(self.method.repeats)]
        return passes[0] if self.is_baseline else unmodified, passes

    def _unmodified(self, prompt: Prompt, decode: Decoder) -> Pass:
        try:
            return timed(UNMODIFIED, prompt, decode, 0)
        except RecordFailure as failure:
            raise RecordFailure(f"the unmodified model: {failure}") from failure


def timed(method: Method, prompt: Prompt, decode: Decoder, seed: int) -> Pass:
    """One answer of `method`, timed."""
    output = answer(method, prompt, decode, seed)
    times = decode.clock.times
    return Pass(output, times[0], times[-1])


def _identical(tokens: list[int], baseline: list[int]) -> float:
    """Share of the baseline's tokens that stand at the same place."""
    return fmean(one == other for one, other in zip(tokens + [-1] * len(baseline), baseline, strict=False))
