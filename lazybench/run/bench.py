"""Times a method and the unmodified model on the same records."""

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
from lazybench.model.decoding import Decoder, decoder_for, read
from lazybench.model.device import ran_out, release
from lazybench.model.prompts import Prompt
from lazybench.run import scoring
from lazybench.run.job import Job
from lazybench.run.timing import Pass, timed, undisturbed
from lazybench.store.journal import CPU_TIMES, WALL_TIMES, with_compared
from lazyllm import LazyLLMError

Done = TypeVar("Done")

_SETTING = "timing.cpu_share"
_TIMES = (*WALL_TIMES, *CPU_TIMES)
# What a row says of an answer; None throughout where there is none.
_ANSWER = ("prediction", "score", "new_tokens", "prompt_computed", "retaken", "disturbed")
_COMPARED = ("baseline_prediction", "baseline_new_tokens", "identical_tokens")
_MEASURED = (*_ANSWER, *with_compared(_TIMES), *_COMPARED)


@dataclass(frozen=True)
class Bench:
    """A job and the model it runs on."""

    job: Job
    model: PreTrainedModel

    def warm_up(self, record: Record) -> None:
        """Untimed runs before any timing; `RecordFailure` where this record cannot be run."""
        prompt, rounds, method = self.job.prompt(record), self.job.config.timing.warmup, self.job.method
        if rounds:
            print(f"warming up: {rounds} untimed rounds of the first record", flush=True)
        passes = [(other, 0) for other in self.job.compared.values()]
        passes += [(method, seed) for seed in range(method.repeats)]
        for other, seed in tqdm(rounds * passes, desc="warm-up", unit="pass", disable=not rounds):
            self.attempt(prompt, partial(_two_tokens, other, prompt, seed=seed))

    def row(self, record: Record, backwards: bool = False, times: bool = True) -> dict[str, Any]:
        """The finished row of one record; one that cannot be run has an `error` and no measurements.

        Args:
            record: the record.
            backwards: take the method's passes first. The caller alternates, so that neither always runs second.
            times: whether its times are taken, beside the unmodified model's; else only its answer and score.
        """
        about = {
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
            about["prompt_tokens"] = prompt.ids.shape[1]
            return about | self.attempt(prompt, lambda decode: self._measured(prompt, decode, backwards, times))
        except (RecordFailure, LazyLLMError) as failure:
            return about | dict.fromkeys(_MEASURED) | {"error": one_line(str(failure))}

    def attempt(self, prompt: Prompt, work: Callable[[Decoder], Done]) -> Done:
        """What `work` returns, which is given the decoder for `prompt`.

        Raises:
            RecordFailure: the model cannot hold the prompt, or memory ran out; what it took is given back.
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

    def _measured(self, prompt: Prompt, decode: Decoder, backwards: bool, times: bool) -> dict[str, Any]:
        record, facts = prompt.record, prompt.builder.facts
        if times and self.model.device.type != "cpu":
            # Kernels are chosen and memory is laid out per shape: one untimed pass of this very shape.
            self._passes(prompt, replace(decode, max_new_tokens=2), least=0)
        if times:
            own, beside = self._passes(prompt, decode, self.job.config.timing.cpu_share, backwards)
        else:
            own, beside = self._own(prompt, decode, least=0), {}
        predictions = [read(done.output.tokens, prompt) for done in own]
        scores = [scoring.score(facts, text, record.answers, record.all_classes) for text in predictions]
        measured = dict.fromkeys(_MEASURED) | {
            "prediction": predictions[0],
            "score": fmean(scores),
            "new_tokens": len(own[0].output.tokens),
            **(_times(own) if times else {}),
            "prompt_computed": fmean(done.output.prompt_computed for done in own),
            "retaken": sum(done.retaken for done in (*own, *beside.values())),
            "disturbed": any(done.disturbed for done in (*own, *beside.values())),
        }
        if self.job.is_baseline and times:
            beside = {"baseline": own[0]}
        for name, done in beside.items():
            measured |= {f"{name}_{key}": value for key, value in _times([done]).items()}
        if "baseline" in beside:
            tokens = beside["baseline"].output.tokens
            measured |= {
                "baseline_prediction": read(tokens, prompt),
                "baseline_new_tokens": len(tokens),
                "identical_tokens": fmean(_identical(done.output.tokens, tokens) for done in own),
            }
        if len(own) > 1:
            measured["repeats"] = [
                {"prediction": text, "score": score, "new_tokens": len(done.output.tokens)}
                | (_times([done]) if times else {})
                for text, score, done in zip(predictions, scores, own, strict=True)
            ]
        return measured

    def _passes(
        self, prompt: Prompt, decode: Decoder, least: float, backwards: bool = False
    ) -> tuple[list[Pass], dict[str, Pass]]:
        """The method's passes, one a seed, and right before or after them those beside it, by name."""
        own = self._own(prompt, decode, least) if backwards else []
        beside = {}
        others = [*self.job.compared.items()]
        for name, method in others[::-1] if backwards else others:
            try:
                beside[name] = undisturbed(method, prompt, decode, 0, least, _SETTING)
            except RecordFailure as failure:
                who = "the unmodified model" if name == "baseline" else "the engine with nothing pruned"
                raise RecordFailure(f"{who}: {failure}") from failure
        return own or self._own(prompt, decode, least), beside

    def _own(self, prompt: Prompt, decode: Decoder, least: float) -> list[Pass]:
        method = self.job.method
        return [undisturbed(method, prompt, decode, seed, least, _SETTING) for seed in range(method.repeats)]


def _two_tokens(method: Method, prompt: Prompt, decode: Decoder, seed: int) -> None:
    """Take one untimed pass."""
    timed(method, prompt, replace(decode, max_new_tokens=2), seed)


def _times(passes: list[Pass]) -> dict[str, float | None]:
    """Mean of each time over some passes, in seconds; of the decode steps over those that have one."""
    there = {time: [value for done in passes if (value := getattr(done, time)) is not None] for time in _TIMES}
    return {time: fmean(of) if of else None for time, of in there.items()}


def _identical(tokens: list[int], baseline: list[int]) -> float:
    """Share of the baseline's tokens that stand at the same place."""
    return fmean(one == other for one, other in zip(tokens + [-1] * len(baseline), baseline, strict=False))
