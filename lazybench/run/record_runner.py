"""Run a method on records, timed beside the unmodified model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.data import Record, data_label
from lazybench.errors import RecordFailure, one_line
from lazybench.methods import Method
from lazybench.model.decoding import Decoder, decoder_for, to_text
from lazybench.model.device import ran_out, release
from lazybench.model.prompts import Prompt
from lazybench.run import scoring
from lazybench.run.prepare import Job
from lazybench.run.timing import Pass, timed, undisturbed
from lazybench.store.journal import CPU_TIMES, WALL_TIMES, with_compared
from lazyllm import LazyLLMError

T = TypeVar("T")

_SETTING = "timing.cpu_share"
_TIMES = (*WALL_TIMES, *CPU_TIMES)
# The columns of a row's answer, which are None where there is none.
_ANSWER = ("prediction", "score", "new_tokens", "prompt_computed", "retaken", "disturbed")
_COMPARED = ("baseline_prediction", "baseline_new_tokens", "identical_tokens")
_MEASURED = (*_ANSWER, *with_compared(_TIMES), *_COMPARED)


@dataclass(frozen=True)
class RecordRunner:
    """Run the records of a job on its model."""

    job: Job
    model: PreTrainedModel

    def warm_up(self, record: Record) -> None:
        """Take untimed passes of a record; raises `RecordFailure` where it cannot be run."""
        prompt, rounds, method = self.job.prompt(record), self.job.config.timing.warmup, self.job.method
        if rounds:
            print(f"warming up: {rounds} untimed rounds of the first record", flush=True)
        passes = [(other, 0) for other in self.job.paired_methods.values()]
        passes += [(method, seed) for seed in range(method.repeats)]
        for other, seed in tqdm(rounds * passes, desc="warm-up", unit="pass", disable=not rounds):
            self.attempt(prompt, partial(_two_tokens, other, prompt, seed=seed))

    def row(self, record: Record, method_first: bool = False, is_timed: bool = True) -> dict[str, Any]:
        """Return the finished row of a record; one that cannot be run has an `error` and no measurements.

        Args:
            record: the record.
            method_first: time the method before the unmodified model. The caller alternates.
            is_timed: take times, beside the unmodified model's; otherwise only the answer and its score.
        """
        row = {
            "_id": record.id,
            "dataset": record.dataset,
            "data": data_label(self.job.config.data),
            "answers": list(record.answers),
            "all_classes": None if record.all_classes is None else list(record.all_classes),
            "length": record.length,
            "prompt_tokens": None,
        }
        try:
            prompt = self.job.prompt(record)
            row["prompt_tokens"] = prompt.ids.shape[1]
            return row | self.attempt(prompt, lambda decode: self._measure(prompt, decode, method_first, is_timed))
        except (RecordFailure, LazyLLMError) as failure:
            return row | dict.fromkeys(_MEASURED) | {"error": one_line(str(failure))}

    def attempt(self, prompt: Prompt, work: Callable[[Decoder], T]) -> T:
        """Call `work` with the decoder for `prompt`, and return its result.

        Raises:
            RecordFailure: the model cannot take the prompt, or memory ran out, which is then released.
        """
        try:
            decode = decoder_for(self.model, prompt)
            decode.check(prompt.ids)
            return work(decode)
        except Exception as error:
            if not ran_out(error):
                raise
        # Only out here is the exception gone, and with it all that it kept alive.
        release()
        raise RecordFailure(f"oom: {prompt.ids.shape[1]} tokens of prompt")

    def _measure(self, prompt: Prompt, decode: Decoder, method_first: bool, is_timed: bool) -> dict[str, Any]:
        record, facts = prompt.record, prompt.builder.facts
        if is_timed:
            if self.model.device.type != "cpu":
                # Kernels are chosen and memory is laid out per shape: one untimed pass of this very shape.
                self._paired_passes(prompt, replace(decode, max_new_tokens=2), least=0)
            passes, paired = self._paired_passes(prompt, decode, self.job.config.timing.cpu_share, method_first)
        else:
            passes, paired = self._passes(prompt, decode, least=0), {}
        predictions = [to_text(each.output.tokens, prompt) for each in passes]
        scores = [scoring.score(facts, text, record.answers, record.all_classes) for text in predictions]
        measured = dict.fromkeys(_MEASURED) | {
            "prediction": predictions[0],
            "score": fmean(scores),
            "new_tokens": len(passes[0].output.tokens),
            **(_mean_times(passes) if is_timed else {}),
            "prompt_computed": fmean(each.output.prompt_computed for each in passes),
            "retaken": sum(each.retaken for each in (*passes, *paired.values())),
            "disturbed": any(each.disturbed for each in (*passes, *paired.values())),
        }
        if self.job.is_baseline and is_timed:
            paired = {"baseline": passes[0]}
        for name, each in paired.items():
            measured |= {f"{name}_{key}": value for key, value in _mean_times([each]).items()}
        if "baseline" in paired:
            tokens = paired["baseline"].output.tokens
            measured |= {
                "baseline_prediction": to_text(tokens, prompt),
                "baseline_new_tokens": len(tokens),
                "identical_tokens": fmean(_identical_share(each.output.tokens, tokens) for each in passes),
            }
        if len(passes) > 1:
            measured["repeats"] = [
                {"prediction": text, "score": score, "new_tokens": len(each.output.tokens)}
                | (_mean_times([each]) if is_timed else {})
                for text, score, each in zip(predictions, scores, passes, strict=True)
            ]
        return measured

    def _paired_passes(
        self, prompt: Prompt, decode: Decoder, least: float, method_first: bool = False
    ) -> tuple[list[Pass], dict[str, Pass]]:
        """Take the method's passes, one a seed, and right before or after them those of the paired methods, by name."""
        passes = self._passes(prompt, decode, least) if method_first else []
        paired = {}
        others = [*self.job.paired_methods.items()]
        for name, method in others[::-1] if method_first else others:
            try:
                paired[name] = undisturbed(method, prompt, decode, 0, least, _SETTING)
            except RecordFailure as failure:
                title = "the unmodified model" if name == "baseline" else "the engine with nothing pruned"
                raise RecordFailure(f"{title}: {failure}") from failure
        return passes or self._passes(prompt, decode, least), paired

    def _passes(self, prompt: Prompt, decode: Decoder, least: float) -> list[Pass]:
        method = self.job.method
        return [undisturbed(method, prompt, decode, seed, least, _SETTING) for seed in range(method.repeats)]


def _two_tokens(method: Method, prompt: Prompt, decode: Decoder, seed: int) -> None:
    """Take one untimed pass."""
    timed(method, prompt, replace(decode, max_new_tokens=2), seed)


def _mean_times(passes: list[Pass]) -> dict[str, float | None]:
    """Return the mean of each time over passes, in seconds; of the decode steps over those that have one."""
    times = {key: [value for each in passes if (value := getattr(each, key)) is not None] for key in _TIMES}
    return {key: fmean(values) if values else None for key, values in times.items()}


def _identical_share(tokens: list[int], baseline: list[int]) -> float:
    """Return the share of the baseline's tokens that `tokens` has at the same positions."""
    return fmean(one == other for one, other in zip(tokens + [-1] * len(baseline), baseline, strict=False))
