"""The unmodified model's answers and logits, generated once for all methods of a sweep."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from lazybench.errors import RecordFailure
from lazybench.identity import digest
from lazybench.methods.base import Output
from lazybench.run.batches import Batches, Question, Result
from lazybench.run.divergence import Expected
from lazybench.run.timing import UNMODIFIED
from lazybench.store.journal import Journal
from lazybench.store.locks import Lock
from lazybench.store.writing import writing

# The logits of the first tokens are cached for later jobs of the process, up to this many bytes.
_CACHED_BYTES = 4e9
_cached: dict[str, dict[str, Expected]] = {}


class Unmodified:
    """Answers of one unmodified model: in a file, for all processes, and with first logits for this process.

    Args:
        path: the file, of one model in one environment.
        batches: generates what is missing.
        num_logits: how many first tokens' logits are needed; 0 for none.
    """

    def __init__(self, path: Path, batches: Batches, num_logits: int) -> None:
        self._journal, self._batches, self._num_logits = Journal(path), batches, num_logits
        model = f"{path} {num_logits}"
        if model not in _cached:
            _cached.clear()
        self._expected = _cached.setdefault(model, {})

    def answers(self, questions: Sequence[Question]) -> list[list[int] | RecordFailure]:
        """Return the new tokens of each answer, or why there is none; generate those that no process has."""
        if not questions:
            return []  # without the lock, and without reading the file
        path, keys = self._journal.path, [_key(question) for question in questions]
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = Lock(path.with_suffix(".lock"), timeout_s=math.inf)
        try:
            lock.acquire()  # whatever another process generates meanwhile is in the file then
            self._journal.load()
            missing = {
                key: each for key, each in zip(keys, questions, strict=True) if ("", key) not in self._journal.rows
            }
            named = [*missing]

            def finish(number: int, result: Result) -> None:
                if isinstance(result, Output):
                    self._journal.add({"dataset": "", "_id": named[number], "tokens": result.tokens})

            results, logits = self._batches.answer(UNMODIFIED, [*missing.values()], self._num_logits, finish)
        finally:
            lock.close()
        tokens = {key: row["tokens"] for (_, key), row in self._journal.rows.items()}
        for number, own in logits.items():
            self._cache(named[number], Expected(tokens[named[number]][: len(own)], own))
        pairs = zip(named, results, strict=True)
        failures = {key: result for key, result in pairs if isinstance(result, RecordFailure)}
        return [failures.get(key) or tokens[key] for key in keys]

    def cached(self, question: Question) -> Expected | None:
        """Return the first tokens of an answer with their logits, where this process has them."""
        return self._expected.get(_key(question))

    def expected(self, questions: Sequence[Question]) -> list[Expected | RecordFailure]:
        """Return the first tokens of each answer with their logits, or why there are none."""
        keys = [_key(question) for question in questions]
        missing = {key: question for key, question in zip(keys, questions, strict=True) if key not in self._expected}
        results: dict[str, Expected | RecordFailure] = {}
        forced: dict[str, Question] = {}
        for (key, question), tokens in zip(missing.items(), self.answers([*missing.values()]), strict=True):
            if isinstance(tokens, RecordFailure):
                results[key] = tokens
            elif key not in self._expected:
                forced[key] = question._replace(decode=replace(question.decode, forced=tokens[: self._num_logits]))
        outcomes, logits = self._batches.answer(UNMODIFIED, [*forced.values()], self._num_logits)
        for number, (key, outcome) in enumerate(zip(forced, outcomes, strict=True)):
            if isinstance(outcome, RecordFailure):
                results[key] = outcome
            else:
                results[key] = answer = Expected(outcome.tokens, logits[number])
                self._cache(key, answer)
        return [results.get(key) or self._expected[key] for key in keys]

    def _cache(self, key: str, answer: Expected) -> None:
        size = sum(each.logits.nbytes for each in self._expected.values())
        if size + answer.logits.nbytes <= _CACHED_BYTES:
            self._expected[key] = answer


def _key(question: Question) -> str:
    """Return a hash of all that decides the unmodified model's answer, for one model."""
    prompt = question.prompt
    return digest({"facts": asdict(prompt.builder.facts), "ids": prompt.ids.tolist()})
