"""Times a method and the unmodified model on the same records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench.config import RunConfig
from lazybench.data import data_label
from lazybench.data.facts import DatasetFacts
from lazybench.data.record import Record
from lazybench.errors import RecordFailure
from lazybench.methods.base import Method
from lazybench.methods.baseline import Baseline
from lazybench.model.decoding import Decoder, decoder_for, read
from lazybench.model.out_of_memory import ran_out, release
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run import scoring
from lazybench.run.timing import UNMODIFIED, Pass, timed, undisturbed
from lazyllm import LazyLLMError

Done = TypeVar("Done")

_TIMES = ("ttft_s", "generation_s", "decode_step_s", "ttft_cpu_s", "generation_cpu_s")
# What stands beside the method's passes: the unmodified model, and the method's engine with nothing pruned.
_BESIDE = ("baseline", "keep_1")
# What a row says of an answer; None throughout where there is none.
_MEASURED = (
    "prediction",
    "score",
    "new_tokens",
    *_TIMES,
    *(f"{name}_{time}" for name in _BESIDE for time in _TIMES),
    "prompt_computed",
    "baseline_prediction",
    "baseline_new_tokens",
    "identical_tokens",
    "retaken",
    "disturbed",
)


@dataclass(frozen=True)
class Passes:
    """The passes of one record, taken next to each other.

    Attributes:
        method: the method's, one a seed.
        beside: the unmodified model's, `baseline`, and that of the method's engine with nothing pruned, `keep_1`; each
            where there is one.
    """

    method: list[Pass]
    beside: dict[str, Pass]

    @property
    def all(self) -> list[Pass]:
        """Every pass."""
        return [*self.method, *self.beside.values()]


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
                self.attempt(prompt, lambda: self._passes(prompt, untimed=True))
        except RecordFailure:
            pass  # its row will say so

    def row(self, record: Record, backwards: bool = False) -> dict[str, Any]:
        """The finished row of one record; one that cannot be run has an `error` and no measurements.

        Args:
            record: the record.
            backwards: take the method's passes before those beside them. A caller alternates, so that none of the two
                always finds the machine as the other left it.
        """
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
            return about | self.attempt(prompt, lambda: self._measured(prompt, backwards))
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

    def _measured(self, prompt: Prompt, backwards: bool) -> dict[str, Any]:
        record, facts = prompt.record, self.facts[prompt.record.dataset]
        if self.model.device.type != "cpu":
            # Kernels are chosen and memory is laid out per shape: one untimed pass of this very shape.
            self._passes(prompt, untimed=True)
        passes = self._passes(prompt, backwards=backwards)
        predictions = [read(done.output.tokens, prompt, self.config.model) for done in passes.method]
        scores = [scoring.score(facts, text, record.answers, record.all_classes) for text in predictions]
        measured = dict.fromkeys(_MEASURED) | {
            "prediction": predictions[0],
            "score": fmean(scores),
            "new_tokens": len(passes.method[0].output.tokens),
            **_times(passes.method),
            "prompt_computed": fmean(done.output.prompt_computed for done in passes.method),
            "retaken": sum(done.retaken for done in passes.all),
            "disturbed": any(done.disturbed for done in passes.all),
        }
        for name, done in passes.beside.items():
            measured |= {f"{name}_{key}": value for key, value in _times([done]).items()}
        if "baseline" in passes.beside:
            tokens = passes.beside["baseline"].output.tokens
            measured |= {
                "baseline_prediction": read(tokens, prompt, self.config.model),
                "baseline_new_tokens": len(tokens),
                "identical_tokens": fmean(_identical(done.output.tokens, tokens) for done in passes.method),
            }
        if len(passes.method) > 1:
            measured["repeats"] = [
                {"prediction": text, "score": score, "new_tokens": len(done.output.tokens), **_times([done])}
                for text, score, done in zip(predictions, scores, passes.method, strict=True)
            ]
        return measured

    def _passes(self, prompt: Prompt, backwards: bool = False, untimed: bool = False) -> Passes:
        """The passes beside the method's and right after them the method's own, or the other way round.

        Untimed ones end after two tokens, and none is taken again.
        """
        decode = self.decoder(prompt)
        if untimed:
            decode.max_new_tokens = 2
        least = 0 if untimed else self.config.timing.cpu_share

        def take(method: Method, seed: int = 0) -> Pass:
            return undisturbed(lambda: timed(method, prompt, decode, seed), self.model.device, least)

        def take_beside() -> dict[str, Pass]:
            return {name: self._beside(take, name, method) for name, method in self._compared().items()}

        def take_method() -> list[Pass]:
            return [take(self.method, seed) for seed in range(self.method.repeats)]

        if backwards:
            own = take_method()
            beside = take_beside()
        else:
            beside = take_beside()
            own = take_method()
        return Passes(own, {"baseline": own[0]} if self.is_baseline else beside)

    def _compared(self) -> dict[str, Method]:
        """What is timed beside the method."""
        if self.is_baseline or not self.config.timing.paired:
            return {}
        keep_1 = self.method.keep_1
        return {"baseline": UNMODIFIED} | ({} if keep_1 is None else {"keep_1": keep_1})

    def _beside(self, take: Callable[[Method], Pass], name: str, method: Method) -> Pass:
        try:
            return take(method)
        except RecordFailure as failure:
            who = "the unmodified model" if name == "baseline" else "the engine with nothing pruned"
            raise RecordFailure(f"{who}: {failure}") from failure


def _times(passes: list[Pass]) -> dict[str, float | None]:
    """Mean of each time over some passes, in seconds; of the decode steps over those that have one."""
    values = {time: [getattr(done, time) for done in passes] for time in _TIMES}
    there = {time: [value for value in of if value is not None] for time, of in values.items()}
    return {time: fmean(of) if of else None for time, of in there.items()}


def _identical(tokens: list[int], baseline: list[int]) -> float:
    """Share of the baseline's tokens that stand at the same place."""
    return fmean(one == other for one, other in zip(tokens + [-1] * len(baseline), baseline, strict=False))
