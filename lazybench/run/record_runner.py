"""Run a method on records: timed beside the unmodified model, or answered in batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.data import Record, data_label
from lazybench.errors import RecordFailure, one_line
from lazybench.methods import Output
from lazybench.model.decoding import Decoder, decoder_for, to_text
from lazybench.model.prompts import Prompt
from lazybench.run import scoring
from lazybench.run.batches import Batches, Question, Result, within_memory
from lazybench.run.divergence import averaged, kl
from lazybench.run.prepare import Job
from lazybench.run.timing import Pass, timed, undisturbed
from lazybench.run.unmodified import Unmodified
from lazybench.store.journal import CPU_TIMES, WALL_TIMES, with_compared
from lazyllm import LazyLLMError

_SETTING = "timing.cpu_share"
_TIMES = (*WALL_TIMES, *CPU_TIMES)
# The columns of a row's answer, which are None where there is none.
_ANSWER = ("prediction", "score", "new_tokens", "prompt_computed", "retaken", "disturbed")
_COMPARED = ("baseline_prediction", "baseline_new_tokens", "identical_tokens")
_MEASURED = (*_ANSWER, *with_compared(_TIMES), *_COMPARED)

Row = dict[str, Any]


@dataclass(frozen=True)
class RecordRunner:
    """Run the records of a job on its model.

    Attributes:
        job: the job.
        model: the model under test.
        batches: answers records that are not timed.
        unmodified: the unmodified model's answers to these.
    """

    job: Job
    model: PreTrainedModel
    batches: Batches
    unmodified: Unmodified

    @property
    def batch_records(self) -> int:
        """How many records fill a batch with the answers of all seeds, at least 1."""
        return max(1, self.batches.size // self.job.method.repeats)

    def question(self, prompt: Prompt) -> Question:
        """Return a prompt with its dataset's decoder; raises `RecordFailure` where the model cannot take it."""
        decode = decoder_for(self.model, prompt)
        decode.check(prompt.ids)
        return Question(prompt, decode)

    def warm_up(self, record: Record) -> None:
        """Take untimed passes of a record; raises `RecordFailure` where it cannot be run."""
        prompt, decode, _ = self.question(self.job.prompt(record))
        rounds, method, decode = self.job.config.timing.warmup, self.job.method, replace(decode, max_new_tokens=2)
        if rounds:
            print(f"warming up: {rounds} untimed rounds of the first record", flush=True)
        passes = [(other, 0) for other in self.job.paired_methods.values()]
        passes += [(method, seed) for seed in range(method.repeats)]
        for other, seed in tqdm(rounds * passes, desc="warm-up", unit="pass", disable=not rounds):
            within_memory(prompt, partial(timed, other, prompt, decode, seed))

    def timed_row(self, record: Record, method_first: bool = False) -> Row:
        """Return a record's row, timed beside the unmodified model.

        A record that cannot be run has an `error` in its row, and no measurements.

        Args:
            record: the record.
            method_first: time the method before the unmodified model. The caller alternates.
        """
        row, question = self._begin(record)
        if question is None:
            return row
        try:
            return row | within_memory(question.prompt, partial(self._measure, question, method_first))
        except (RecordFailure, LazyLLMError) as failure:
            return _failed(row, failure)

    def answer(
        self, records: Sequence[Record], write: Callable[[Row], None], write_trace: Callable[[Row], None]
    ) -> None:
        """Answer records in batches, without times.

        Args:
            records: the records.
            write: called with each record's row as soon as its answers have ended.
            write_trace: called with the divergence of each record whose answers' own logits tell it, if
                `config.trace`.
        """
        facts, method = self.job.facts, self.job.method
        # Answers of one method that may become equally long are likely to end together.
        missing = sorted(
            records,
            key=lambda record: (id(method.for_record(record)), facts[record.dataset].max_new_tokens, record.length),
        )
        while missing:
            count = self.batch_records  # it shrinks when memory runs out
            self._answer_batch(missing[:count], write, write_trace)
            del missing[:count]

    def _answer_batch(
        self,
        records: Sequence[Record],
        write: Callable[[Row], None],
        write_trace: Callable[[Row], None],
    ) -> None:
        rows, questions = [], []
        for row, question in map(self._begin, records):
            if question is None:
                write(row)
            else:
                rows.append(row)
                questions.append(question)
        is_paired = self.job.is_baseline or bool(self.job.paired_methods)
        unmodified = self.unmodified.answers(questions) if is_paired else [None] * len(questions)
        repeats = self.job.method.repeats
        results: list[dict[int, Result]] = [{} for _ in questions]

        def finish(number: int, result: Result) -> None:
            index, seed = divmod(number, repeats)
            results[index][seed] = result
            if len(results[index]) == repeats:
                own = [results[index][seed] for seed in range(repeats)]
                write(_answered_row(rows[index], questions[index].prompt, own, unmodified[index]))

        if self.job.is_baseline:
            for number, tokens in enumerate(unmodified):
                finish(number, tokens if isinstance(tokens, RecordFailure) else Output(tokens, prompt_computed=1.0))
            return
        asked = [question._replace(seed=seed) for question in questions for seed in range(repeats)]
        num_logits = self.job.config.trace_tokens if self.job.config.trace else 0
        _, logits = self.batches.answer(self.job.method, asked, num_logits, finish)
        for index, question in enumerate(questions):
            numbers, expected = range(index * repeats, (index + 1) * repeats), self.unmodified.cached(question)
            if expected is None or not logits.keys() >= {*numbers}:
                continue
            # As long as an answer is the unmodified model's, it goes through the same tokens as that.
            length = len(expected.tokens)
            if all(result.tokens[:length] == expected.tokens for result in results[index].values()):
                own = [kl(expected.logits, logits[number][:length]) for number in numbers]
                dataset, name = question.prompt.record.key
                write_trace({"_id": name, "dataset": dataset, **averaged(own)})

    def _begin(self, record: Record) -> tuple[Row, Question | None]:
        """Return the beginning of a record's row, with its question; or the row of one that cannot be asked."""
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
            return row, self.question(prompt)
        except RecordFailure as failure:
            return _failed(row, failure), None

    def _measure(self, question: Question, method_first: bool) -> Row:
        prompt, decode, _ = question
        if self.model.device.type != "cpu":
            # Kernels are chosen and memory is laid out per shape: one untimed pass of this very shape.
            self._paired_passes(prompt, replace(decode, max_new_tokens=2), least=0)
        passes, paired = self._paired_passes(prompt, decode, self.job.config.timing.cpu_share, method_first)
        every = [*passes, *paired.values()]
        if self.job.is_baseline:
            paired = {"baseline": passes[0], **paired}
        unmodified = paired["baseline"].output.tokens if "baseline" in paired else None
        measured = _answered(prompt, [each.output for each in passes], unmodified) | _mean_times(passes)
        measured["retaken"] = sum(each.retaken for each in every)
        measured["disturbed"] = any(each.disturbed for each in every)
        for name, each in paired.items():
            measured |= {f"{name}_{key}": value for key, value in _mean_times([each]).items()}
        for repeat, each in zip(measured.get("repeats", ()), passes, strict=False):
            repeat |= _mean_times([each])
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


def _answered_row(
    row: Row, prompt: Prompt, results: Sequence[Result], unmodified: list[int] | RecordFailure | None
) -> Row:
    """Complete the row of a record by the results of all seeds and the unmodified model's new tokens, if any."""
    outputs = [result for result in results if isinstance(result, Output)]
    if failures := [result for result in results if isinstance(result, RecordFailure)]:
        return _failed(row, failures[0])
    return row | _answered(prompt, outputs, None if isinstance(unmodified, RecordFailure) else unmodified)


def _failed(row: Row, failure: Exception) -> Row:
    return row | dict.fromkeys(_MEASURED) | {"error": one_line(str(failure))}


def _answered(prompt: Prompt, outputs: Sequence[Output], unmodified: list[int] | None) -> Row:
    """Return the columns of a record's answers, one a seed, with empty ones for times."""
    record = prompt.record
    predictions = [to_text(output.tokens, prompt) for output in outputs]
    scores = [scoring.score(prompt.builder.facts, text, record.answers, record.all_classes) for text in predictions]
    answered = dict.fromkeys(_MEASURED) | {
        "prediction": predictions[0],
        "score": fmean(scores),
        "new_tokens": len(outputs[0].tokens),
        "prompt_computed": fmean(output.prompt_computed for output in outputs),
        "retaken": 0,
        "disturbed": False,
    }
    if unmodified is not None:
        answered |= {
            "baseline_prediction": to_text(unmodified, prompt),
            "baseline_new_tokens": len(unmodified),
            "identical_tokens": fmean(_identical_share(output.tokens, unmodified) for output in outputs),
        }
    if len(outputs) > 1:
        answered["repeats"] = [
            {"prediction": text, "score": score, "new_tokens": len(output.tokens)}
            for text, score, output in zip(predictions, scores, outputs, strict=True)
        ]
    return answered


def _mean_times(passes: list[Pass]) -> dict[str, float | None]:
    """Return the mean of each time over passes, in seconds; of the decode steps over those that have one."""
    times = {key: [value for each in passes if (value := getattr(each, key)) is not None] for key in _TIMES}
    return {key: fmean(values) if values else None for key, values in times.items()}


def _identical_share(tokens: list[int], baseline: list[int]) -> float:
    """Return the share of the baseline's tokens that `tokens` has at the same positions."""
    return fmean(one == other for one, other in zip(tokens + [-1] * len(baseline), baseline, strict=False))
