"""Times a method and the unmodified model on the same records."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench import scoring
from lazybench.config import RunConfig
from lazybench.data import data_label
from lazybench.data.record import Record
from lazybench.decoding import Decoder, decoder_for, read
from lazybench.errors import RecordFailure
from lazybench.facts import DatasetFacts
from lazybench.methods.base import Method, Output
from lazybench.methods.baseline import Baseline
from lazybench.prompts import Prompt, PromptBuilder

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
        for _ in range(self.config.timing.warmup):
            try:
                self._both(self.prompt(record), new_tokens=2)
            except (RecordFailure, torch.OutOfMemoryError):
                return  # its row will say so

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
            self._check_length(prompt)
            return about | self._measured(prompt)
        except RecordFailure as failure:
            return about | dict.fromkeys(_MEASURED) | {"error": str(failure)}
        except torch.OutOfMemoryError:
            gc.collect()
            torch.cuda.empty_cache()
            return about | dict.fromkeys(_MEASURED) | {"error": "oom"}

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

    def _check_length(self, prompt: Prompt) -> None:
        holds = getattr(self.model.config, "max_position_embeddings", None)
        tokens, new = prompt.ids.shape[1], self.facts[prompt.record.dataset].max_new_tokens
        if holds is not None and tokens + new > holds:
            raise RecordFailure(f"{tokens} tokens of prompt and {new} new ones are more than the model's {holds}")

    def _measured(self, prompt: Prompt) -> dict[str, Any]:
        record, facts = prompt.record, self.facts[prompt.record.dataset]
        if self.model.device.type == "cuda":
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
        unmodified = timed(UNMODIFIED, prompt, decode, 0) if paired else None
        passes = [timed(self.method, prompt, decode, seed) for seed in range(self.method.repeats)]
        return passes[0] if self.is_baseline else unmodified, passes


def timed(method: Method, prompt: Prompt, decode: Decoder, seed: int) -> Pass:
    """One answer of `method`, timed."""
    decode.clock.start()
    output = method.generate(prompt, decode, seed)
    times = decode.clock.times
    return Pass(output, times[0], times[-1])


def _identical(tokens: list[int], baseline: list[int]) -> float:
    """Share of the baseline's tokens that stand at the same place."""
    return fmean(one == other for one, other in zip(tokens + [-1] * len(baseline), baseline, strict=False))
