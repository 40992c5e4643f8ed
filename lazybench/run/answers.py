"""Answer a job's records in batches beside the unmodified model, score them, and trace them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from lazybench.data import Record, data_label
from lazybench.errors import RecordFailure, one_line
from lazybench.methods import Method, Output
from lazybench.model.decoding import Question, question_of, to_text
from lazybench.run import scoring
from lazybench.run.batches import Batches, Unmodified, attempt
from lazybench.run.divergence import averaged, kl
from lazybench.run.prepare import Job
from lazybench.run.tracing import attention, progress
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
    batches: Batches
    unmodified: Unmodified

    def answer(self, records: Sequence[Record]) -> Iterator[tuple[Row, Row]]:
        """Yield the row and the trace of each record once its batch has ended.

        A record that cannot be run has an `error` in both, and no measurements. With `config.trace`, a trace has `kl`,
        KL(unmodified || method) of the next token in nats, mean over the first tokens of the unmodified model's answer
        and over seeds, and `first_token_kl`, that of the first token. Methods with stages add `stages` and `computed`
        (`tracing.progress`), the baseline `attention` for some records of each dataset (`tracing.attention`).
        """
        dataset_configs, size = self.job.dataset_configs, max(1, self.batches.size // self.job.method.repeats)
        by_method: dict[int, tuple[Method, list[Record]]] = {}
        # Answers of similar length end together.
        for record in sorted(records, key=lambda each: (dataset_configs[each.dataset].max_new_tokens, each.length)):
            method = self.job.method.for_record(record)
            by_method.setdefault(id(method), (method, []))[1].append(record)
        for method, own in by_method.values():
            for start in range(0, len(own), size):
                yield from self._answer(method, own[start : start + size])

    @cached_property
    def _attention_keys(self) -> set[Key]:
        return {record.key for record in self.job.spread(_ATTENTION_RECORDS)}

    def _answer(self, method: Method, records: Sequence[Record]) -> Iterator[tuple[Row, Row]]:
        """Yield each record's row and trace."""
        job, repeats, asked = self.job, self.job.method.repeats, []
        label = data_label(replace(job.config.data, label=None))  # a resumed run may have another
        for record in records:
            row = {"_id": record.id, "dataset": record.dataset, "data": label, "answers": [*record.answers]}
            row["all_classes"] = None if record.all_classes is None else [*record.all_classes]
            row |= {"length": record.length, "groups": record.groups, "prompt_tokens": None}
            try:
                question = question_of(self.batches.model, job.prompt(record))
            except RecordFailure as failure:
                yield _failed(row, failure)
            else:
                asked.append((row | {"prompt_tokens": question.prompt.ids.shape[1]}, question))
        with_logits = job.config.trace and not job.is_baseline
        unmodified = self.unmodified.answers([question for _, question in asked], with_logits)
        left, by_seed = [], []
        for (row, question), expected in zip(asked, unmodified, strict=True):
            if isinstance(expected, RecordFailure):
                yield _failed(row, expected)
                continue
            left.append((row, question, expected))
            reference = None if expected.logits is None else expected.tokens[: len(expected.logits)]
            by_seed += [question._replace(seed=seed, reference=reference) for seed in range(repeats)]
        if job.is_baseline:
            answers = [expected for *_, expected in left for _ in range(repeats)]
        else:
            answers = self.batches.answer(method, by_seed, job.config.trace_tokens if job.config.trace else 0)
        for number, (row, question, expected) in enumerate(left):
            own = answers[number * repeats : (number + 1) * repeats]
            if failure := next((each for each in own if isinstance(each, RecordFailure)), None):
                yield _failed(row, failure)
                continue
            row |= _columns(question, own, expected.tokens)
            trace = self._trace(question, expected, own) if job.config.trace else {}
            yield row, {"_id": row["_id"], "dataset": row["dataset"], **trace}

    def _trace(self, question: Question, expected: Output, own: Sequence[Output]) -> Row:
        """Return the trace of a record, without its name; `own` are its answers by seed."""
        try:
            if not self.job.is_baseline:
                return averaged([kl(expected.logits, each.logits) for each in own]) | progress(own[0].stats)
            traced = {"first_token_kl": 0.0, "kl": 0.0}
            if question.prompt.record.key in self._attention_keys:
                traced |= attempt([question], lambda: attention(self.batches.model, question))
            return traced
        except RecordFailure as failure:
            return {"error": one_line(str(failure))}


def _failed(row: Row, failure: RecordFailure) -> tuple[Row, Row]:
    """Return the row and the trace of a record that failed."""
    error = {"error": one_line(str(failure))}
    return row | dict.fromkeys(_ANSWER) | error, {"_id": row["_id"], "dataset": row["dataset"], **error}


def _columns(question: Question, outputs: Sequence[Output], unmodified: list[int]) -> Row:
    """Return the columns of a record's answers, one per seed, and of the unmodified model's answer."""
    prompt, config, record = question.prompt, question.prompt.builder.dataset_config, question.prompt.record

    def scored(tokens: list[int]) -> Row:
        text = to_text(tokens, prompt)
        value = scoring.score(config, text, record.answers, record.all_classes) if record.answers else None
        return {"prediction": text, "score": value, "new_tokens": len(tokens)}

    repeats, most = [], question.stops.max_new_tokens
    for output in outputs:
        pairs = zip(output.tokens + [-1] * len(unmodified), unmodified, strict=False)
        repeats.append(scored(output.tokens) | {"identical_tokens": fmean(one == other for one, other in pairs)})
    means = ("identical_tokens", *["score"] * bool(record.answers))
    columns = repeats[0] | {key: fmean(repeat[key] for repeat in repeats) for key in means}
    columns["prompt_computed"] = fmean(output.prompt_computed for output in outputs)
    columns["reached_limit"] = fmean(repeat["new_tokens"] >= most for repeat in repeats)
    columns |= {f"unmodified_{key}": value for key, value in scored(unmodified).items()}
    return columns | ({"repeats": repeats} if len(repeats) > 1 else {})
