"""Answer a job's records in batches beside the unmodified model, score them, and trace them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel

from lazybench.data import Record, data_label
from lazybench.errors import RecordFailure, one_line
from lazybench.methods import Method, Output
from lazybench.model.decoding import Question, question_of, to_text
from lazybench.run import scoring
from lazybench.run.batches import Answer, Batches, attempt
from lazybench.run.divergence import averaged, kl
from lazybench.run.prepare import Job
from lazybench.run.tracing import attention, progress
from lazybench.run.unmodified import Unmodified, UnmodifiedAnswer
from lazybench.store.journal import Key

_ATTENTION_RECORDS = 12  # per dataset: the attention of one record takes 40 kB
# The columns of an answer, None in the row of a record that failed.
_UNMODIFIED = ("unmodified_prediction", "unmodified_score", "unmodified_new_tokens", "identical_tokens")
_ANSWER = ("prediction", "score", "new_tokens", "prompt_computed", "reached_limit", *_UNMODIFIED)

Row = dict[str, Any]


@dataclass(frozen=True)
class Answering:
    """Answer records by the method of a job, with all seeds at once."""

    job: Job
    model: PreTrainedModel
    batches: Batches
    unmodified: Unmodified  # the unmodified model's answers
    source: Mapping[str, Any]  # `device`, `commit` and `date`, added to each row

    def answer(self, records: Sequence[Record], write: Callable[[Row], None], trace: Callable[[Row], None]) -> None:
        """Answer records, and trace them if `config.trace`.

        Args:
            records: the records.
            write: called with a record's row once its batch has ended; a record that cannot be run has an `error` in
                its row, and no measurements.
            trace: called with a record's trace, or its `error`. `kl` is KL(unmodified || method) of the next token in
                nats, mean over the first tokens of the unmodified model's answer and over seeds; `first_token_kl` is
                that of the first token. Methods with stages add `stages` and `computed` (`tracing.progress`), the
                baseline `attention` for some records of each dataset (`tracing.attention`).
        """
        dataset_configs, size = self.job.dataset_configs, max(1, self.batches.size // self.job.method.repeats)
        by_method: dict[int, tuple[Method, list[Record]]] = {}
        # Answers of similar length end together.
        for record in sorted(records, key=lambda each: (dataset_configs[each.dataset].max_new_tokens, each.length)):
            method = self.job.method.for_record(record)
            by_method.setdefault(id(method), (method, []))[1].append(record)
        for method, own in by_method.values():
            for start in range(0, len(own), size):
                for row, traced in self._answer(method, own[start : start + size]):
                    # Write the trace first: a row marks its record as done.
                    if traced is not None:
                        trace({"_id": row["_id"], "dataset": row["dataset"], **traced, **self.source})
                    write(row | self.source)

    @cached_property
    def _attention_keys(self) -> set[Key]:
        return {record.key for record in self.job.spread(_ATTENTION_RECORDS)}

    def _answer(self, method: Method, records: Sequence[Record]) -> Iterator[tuple[Row, Row | None]]:
        """Yield each record's row, and its trace if `config.trace`."""
        job, repeats, traces = self.job, self.job.method.repeats, self.job.config.trace
        rows: list[Row] = []
        questions: list[Question] = []
        for record in records:
            row = _new_row(record, data_label(replace(job.config.data, label=None)))  # a resumed run may have another
            try:
                prompt = job.prompt(record)
                row["prompt_tokens"] = prompt.ids.shape[1]
                questions.append(question_of(self.model, prompt))
            except RecordFailure as failure:
                yield _failed(row, failure), _failure(failure) if traces else None
            else:
                rows.append(row)
        unmodified = self.unmodified.answers(questions, with_logits=traces and not job.is_baseline)
        if job.is_baseline:
            results = [_as_output(each) for each in unmodified for _ in range(repeats)]
        else:
            by_seed = [
                question._replace(seed=seed, reference=getattr(each, "reference", None))
                for question, each in zip(questions, unmodified, strict=True)
                for seed in range(repeats)
            ]
            results = self.batches.answer(method, by_seed, job.config.trace_tokens if traces else 0)
        for index, (row, question, expected) in enumerate(zip(rows, questions, unmodified, strict=True)):
            own = results[index * repeats : (index + 1) * repeats]
            failure = next((each for each in (*own, expected) if isinstance(each, RecordFailure)), None)
            if failure is not None:
                yield _failed(row, failure), _failure(failure) if traces else None
                continue
            answered = row | _columns(question, [each.output for each in own], expected.tokens)
            yield answered, self._trace(question, expected, own) if traces else None

    def _trace(self, question: Question, expected: UnmodifiedAnswer, own: Sequence[Answer]) -> Row:
        """Return the trace of a record, without its id; `own` are its answers by seed."""
        try:
            if not self.job.is_baseline:
                return averaged([kl(expected.logits, each.logits) for each in own]) | progress(own[0].output.stats)
            traced = {"first_token_kl": 0.0, "kl": 0.0}
            if question.prompt.record.key in self._attention_keys:
                traced |= attempt([question], lambda: attention(self.model, question))
            return traced
        except RecordFailure as failure:
            return _failure(failure)


def _as_output(answer: UnmodifiedAnswer | RecordFailure) -> Answer | RecordFailure:
    if isinstance(answer, RecordFailure):
        return answer
    return Answer(Output(answer.tokens, prompt_computed=1.0), answer.logits)


def _new_row(record: Record, label: str) -> Row:
    return {
        "_id": record.id,
        "dataset": record.dataset,
        "data": label,
        "answers": list(record.answers),
        "all_classes": None if record.all_classes is None else list(record.all_classes),
        "length": record.length,
        "groups": record.groups,
        "prompt_tokens": None,
    }


def _failure(failure: Exception) -> Row:
    return {"error": one_line(str(failure))}


def _failed(row: Row, failure: Exception) -> Row:
    return row | dict.fromkeys(_ANSWER) | _failure(failure)


def _columns(question: Question, outputs: Sequence[Output], unmodified: list[int]) -> Row:
    """Return the columns of a record's answers, one per seed, and of the unmodified model's answer."""
    prompt, config, record = question.prompt, question.prompt.builder.dataset_config, question.prompt.record

    def scored(tokens: list[int]) -> Row:
        text = to_text(tokens, prompt)
        value = scoring.score(config, text, record.answers, record.all_classes)
        return {"prediction": text, "score": value, "new_tokens": len(tokens)}

    repeats = [
        scored(output.tokens) | {"identical_tokens": _identical_share(output.tokens, unmodified)} for output in outputs
    ]
    most = question.stops.max_new_tokens
    columns = repeats[0] | {
        "score": fmean(repeat["score"] for repeat in repeats),
        "prompt_computed": fmean(output.prompt_computed for output in outputs),
        "reached_limit": fmean(repeat["new_tokens"] >= most for repeat in repeats),
        **{f"unmodified_{key}": value for key, value in scored(unmodified).items()},
        "identical_tokens": fmean(repeat["identical_tokens"] for repeat in repeats),
    }
    return columns | ({"repeats": repeats} if len(repeats) > 1 else {})


def _identical_share(tokens: list[int], unmodified: list[int]) -> float:
    """Return the share of the unmodified answer's tokens that `tokens` has at the same positions."""
    return fmean(one == other for one, other in zip(tokens + [-1] * len(unmodified), unmodified, strict=False))
