"""Run a method on records: timed beside the unmodified model, or answered in batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.data import Record, data_label
from lazybench.errors import RecordFailure, one_line
from lazybench.methods import Method, OnEngine, Output
from lazybench.model.decoding import Decoder, decoder_for, to_text
from lazybench.model.prompts import Prompt
from lazybench.run import scoring
from lazybench.run.batches import Batches, Question, Result, within_memory
from lazybench.run.divergence import UnmodifiedAnswer, averaged, kl
from lazybench.run.prepare import Job
from lazybench.run.timing import Pass, timed, undisturbed
from lazybench.run.tracing import attention, progress
from lazybench.run.unmodified import Unmodified
from lazybench.store.journal import CPU_TIMES, WALL_TIMES, with_compared
from lazyllm import LazyLLMError

_SETTING = "timing.cpu_share"
_TIMES = (*WALL_TIMES, *CPU_TIMES)
# The columns of a row's answer, which are None where there is none.
_ANSWER = ("prediction", "score", "new_tokens", "prompt_computed", "retaken", "disturbed")
_COMPARED = ("baseline_prediction", "baseline_score", "baseline_new_tokens", "identical_tokens")
_MEASURED = (*_ANSWER, *with_compared(_TIMES), *_COMPARED)

Row = dict[str, Any]


@dataclass(frozen=True)
class RecordRunner:
    """Run the records of a job on its model."""

    job: Job
    model: PreTrainedModel
    batches: Batches  # answers records that are not timed
    unmodified: Unmodified  # the unmodified model's answers to these

    def question(self, prompt: Prompt) -> Question:
        """Return a prompt with its dataset's decoder; raises `RecordFailure` where the model cannot take it."""
        decode = decoder_for(self.model, prompt)
        decode.check(prompt.ids)
        return Question(prompt, decode)

    def warm_up(self, record: Record) -> None:
        """Take untimed passes of a record; raises `RecordFailure` where it cannot be run."""
        question, method = self.question(self.job.prompt(record)), self.job.method
        rounds = self.job.config.timing.warmup
        prompt, decode = question.prompt, replace(question.decode, max_new_tokens=2)
        if rounds:
            print(f"warming up: {rounds} untimed rounds of the first record", flush=True)
        passes = [(other, 0) for other in self.job.paired_methods.values()]
        passes += [(method, seed) for seed in range(method.repeats)]
        for other, seed in tqdm(rounds * passes, desc="warm-up", unit="pass", disable=not rounds):
            within_memory(prompt, partial(timed, other, prompt, decode, seed))

    def timed_row(self, record: Record, method_first: bool = False) -> Row:
        """Return a record's row, timed beside the unmodified model; with `method_first` the method is timed first.

        The caller alternates. A record that cannot be run has an `error` in its row, and no measurements.
        """
        row, question = self._new_row(record)
        if question is None:
            return row
        try:
            return row | within_memory(question.prompt, partial(self._measure, question, method_first))
        except (RecordFailure, LazyLLMError) as failure:
            return _failed(row, failure)

    def answer(
        self, records: Sequence[Record], write: Callable[[Row], None] | None, write_trace: Callable[[Row], None]
    ) -> None:
        """Answer records in batches, without times, and trace them if `config.trace`.

        A trace has `_id`, `dataset`, and `error` where the method or the unmodified model cannot run; else
        `kl` and `first_token_kl`: KL(unmodified || method) of the next token in nats, as the mean over the first tokens
        of the unmodified model's answer and of the first alone, averaged over seeds;
        for a method with stages, `stages` and `computed`, see `tracing.progress`;
        for a timed record of the baseline, `attention`, see `tracing.attention`.

        `write` is called with each record's row as soon as its answers have ended; it is None if the records have rows.
        `write_trace` is called with each record's trace once its batch has ended.
        """
        job = self.job
        by_method: dict[int, tuple[Method, list[Record]]] = {}
        # Answers of similar length end together.
        for record in sorted(records, key=lambda each: (job.facts[each.dataset].max_new_tokens, each.length)):
            method = job.method.for_record(record)
            by_method.setdefault(id(method), (method, []))[1].append(record)
        for method, missing in by_method.values():
            while missing:
                count = max(1, self.batches.size // job.method.repeats)  # it shrinks when memory runs out
                self._answer_batch(method, missing[:count], write, write_trace)
                del missing[:count]

    def _answer_batch(
        self,
        method: Method,
        records: Sequence[Record],
        write: Callable[[Row], None] | None,
        write_trace: Callable[[Row], None],
    ) -> None:
        """Answer records by a method with all seeds at once."""
        job, traces, repeats = self.job, self.job.config.trace, self.job.method.repeats
        rows, questions = [], []
        for row, question in map(self._new_row, records):
            if question is not None:
                rows.append(row)
                questions.append(question)
                continue
            if write is not None:
                write(row)
            if traces:
                write_trace(_trace_row(row, {"error": row["error"]}))
        is_compared, unmodified = job.is_baseline or bool(job.paired_methods), [None] * len(questions)
        if is_compared or traces:
            unmodified = self.unmodified.answers(questions, with_logits=traces and not job.is_baseline)
        ended: dict[int, Result] = {}  # by index of the record times `repeats`, plus the seed

        def finish(number: int, result: Result) -> None:
            ended[number] = result
            index = number // repeats
            own = [ended.get(index * repeats + seed) for seed in range(repeats)]
            if write is not None and None not in own:
                compared = unmodified[index] if is_compared else None
                write(_finished_row(rows[index], questions[index].prompt, own, compared))

        logits: dict[int, torch.Tensor] = {}
        if job.is_baseline:
            results = [
                Output(each.tokens, prompt_computed=1.0) if isinstance(each, UnmodifiedAnswer) else each
                for each in unmodified
                for _ in range(repeats)
            ]
            for number, result in enumerate(results):
                finish(number, result)
        else:
            by_seed = []
            for question, each in zip(questions, unmodified, strict=True):
                decode = replace(question.decode, tracing=traces)
                reference = each.reference if isinstance(each, UnmodifiedAnswer) else None
                if write is None and reference and not isinstance(method, OnEngine):
                    # Only KL needs this answer: a trace shows the stages of methods on the engine alone.
                    decode = replace(decode, max_new_tokens=min(decode.max_new_tokens, len(reference)))
                by_seed += [Question(question.prompt, decode, seed, reference) for seed in range(repeats)]
            num_logits = job.config.trace_tokens if traces else 0
            results, logits = self.batches.answer(method, by_seed, num_logits, finish)
        for index, question in enumerate(questions if traces else ()):
            numbers = range(index * repeats, (index + 1) * repeats)
            own, own_logits = [results[number] for number in numbers], [logits.get(number) for number in numbers]
            write_trace(_trace_row(rows[index], self._trace(question, unmodified[index], own, own_logits)))

    def _trace(
        self,
        question: Question,
        unmodified: UnmodifiedAnswer | RecordFailure,
        results: Sequence[Result],
        logits: Sequence[torch.Tensor | None],
    ) -> Row:
        """Return a record's trace without its id, from its results by seed and their logits."""
        for each in (unmodified, *results):
            if isinstance(each, RecordFailure):
                return {"error": one_line(str(each))}
        prompt = question.prompt
        try:
            if self.job.is_baseline:
                is_timed = self.job.is_timed(prompt.record)
                traced = {"first_token_kl": 0.0, "kl": 0.0}
                return traced | (within_memory(prompt, partial(attention, prompt, question.decode)) if is_timed else {})
            traced = averaged([kl(unmodified.logits, own) for own in logits])
            return traced | progress(results[0].stats)
        except (RecordFailure, LazyLLMError) as failure:
            return {"error": one_line(str(failure))}

    def _new_row(self, record: Record) -> tuple[Row, Question | None]:
        """Return a record's row without an answer, and its question; for a prompt that fails, its row and None."""
        row = {
            "_id": record.id,
            "dataset": record.dataset,
            "data": data_label(replace(self.job.config.data, label=None)),  # a resumed run may have another label
            "answers": list(record.answers),
            "all_classes": None if record.all_classes is None else list(record.all_classes),
            "length": record.length,
            "groups": record.groups,
            "prompt_tokens": None,
        }
        try:
            prompt = self.job.prompt(record)
            row["prompt_tokens"] = prompt.ids.shape[1]
            return row, self.question(prompt)
        except RecordFailure as failure:
            return _failed(row, failure), None

    def _measure(self, question: Question, method_first: bool) -> Row:
        prompt, decode = question.prompt, question.decode
        if self.model.device.type != "cpu":
            # Kernels are chosen and memory is laid out per shape: one untimed pass of this very shape.
            self._paired_passes(prompt, replace(decode, max_new_tokens=2), least=0)
        passes, paired = self._paired_passes(prompt, decode, self.job.config.timing.cpu_share, method_first)
        every = [*passes, *paired.values()]
        if self.job.is_baseline:
            paired = {"baseline": passes[0], **paired}
        unmodified = paired["baseline"].output.tokens if "baseline" in paired else None
        measured = _answer_columns(prompt, [each.output for each in passes], unmodified) | _mean_times(passes)
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
        """Take the method's passes, one a seed, and right before or after them one of each paired method, by name."""
        passes = self._passes(prompt, decode, least) if method_first else []
        paired = {}
        others = [*self.job.paired_methods.items()]
        for name, method in others[::-1] if method_first else others:
            try:
                taken = partial(undisturbed, method, prompt, decode, 0, least, _SETTING)
                paired[name] = within_memory(prompt, taken)
            except (RecordFailure, LazyLLMError) as failure:
                title = "the unmodified model" if name == "baseline" else "the engine with nothing pruned"
                raise RecordFailure(f"{title}: {failure}") from failure
        return passes or self._passes(prompt, decode, least), paired

    def _passes(self, prompt: Prompt, decode: Decoder, least: float) -> list[Pass]:
        method = self.job.method
        return [undisturbed(method, prompt, decode, seed, least, _SETTING) for seed in range(method.repeats)]


def _trace_row(row: Row, traced: Row) -> Row:
    return {"_id": row["_id"], "dataset": row["dataset"], **traced}


def _finished_row(
    row: Row, prompt: Prompt, results: Sequence[Result], unmodified: UnmodifiedAnswer | RecordFailure | None
) -> Row:
    """Complete the row of a record by the results of all seeds and the unmodified model's answer, if any."""
    if failures := [result for result in results if isinstance(result, RecordFailure)]:
        return _failed(row, failures[0])
    return row | _answer_columns(
        prompt, results, unmodified.tokens if isinstance(unmodified, UnmodifiedAnswer) else None
    )


def _failed(row: Row, failure: Exception) -> Row:
    return row | dict.fromkeys(_MEASURED) | {"error": one_line(str(failure))}


def _answer_columns(prompt: Prompt, outputs: Sequence[Output], unmodified: list[int] | None) -> Row:
    """Return the columns of a record's answers, one a seed, with empty ones for times."""
    facts, record = prompt.builder.facts, prompt.record

    def score(text: str) -> float:
        return scoring.score(facts, text, record.answers, record.all_classes)

    predictions = [to_text(output.tokens, prompt) for output in outputs]
    scores = [score(text) for text in predictions]
    answered = dict.fromkeys(_MEASURED) | {
        "prediction": predictions[0],
        "score": fmean(scores),
        "new_tokens": len(outputs[0].tokens),
        "prompt_computed": fmean(output.prompt_computed for output in outputs),
        "retaken": 0,
        "disturbed": False,
    }
    shares: list[float | None] = [None] * len(outputs)
    if unmodified is not None:
        shares = [_identical_share(output.tokens, unmodified) for output in outputs]
        text = to_text(unmodified, prompt)
        answered |= {
            "baseline_prediction": text,
            "baseline_score": score(text),
            "baseline_new_tokens": len(unmodified),
            "identical_tokens": fmean(shares),
        }
    if len(outputs) > 1:
        answered["repeats"] = [
            {"prediction": text, "score": value, "new_tokens": len(output.tokens), "identical_tokens": share}
            for text, value, output, share in zip(predictions, scores, outputs, shares, strict=True)
        ]
    return answered


def _mean_times(passes: list[Pass]) -> dict[str, float | None]:
    """Return the mean of each time over passes, in seconds; of the decode steps over those that have one."""
    times = {key: [value for each in passes if (value := getattr(each, key)) is not None] for key in _TIMES}
    return {key: fmean(values) if values else None for key, values in times.items()}


def _identical_share(tokens: list[int], baseline: list[int]) -> float:
    """Return the share of the baseline's tokens that `tokens` has at the same positions."""
    return fmean(one == other for one, other in zip(tokens + [-1] * len(baseline), baseline, strict=False))
