"""The unmodified model's answers and logits, generated once for all methods of a sweep."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from lazybench.errors import RecordFailure
from lazybench.identity import digest
from lazybench.methods.base import Output
from lazybench.run.batches import Batches, Question, Result
from lazybench.run.timing import UNMODIFIED
from lazybench.store.journal import Journal
from lazybench.store.locks import Lock
from lazybench.store.writing import writing

# The logits of the first tokens are cached for later jobs of the process, up to this many bytes.
_CACHED_BYTES = 4e9
_cached: dict[str, dict[str, torch.Tensor]] = {}


@dataclass(frozen=True)
class Answer:
    """The unmodified model's answer to a prompt.

    Attributes:
        tokens: ids of the new tokens.
        logits: of the first ones, (tokens, vocabulary), float32, on the CPU, or why there are none; None unless asked.
    """

    tokens: list[int]
    logits: torch.Tensor | RecordFailure | None

    @property
    def reference(self) -> list[int] | None:
        """The tokens with logits; None without any."""
        return self.tokens[: len(self.logits)] if isinstance(self.logits, torch.Tensor) else None


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
        self._logits = _cached.setdefault(model, {})

    def answers(self, questions: Sequence[Question], with_logits: bool = False) -> list[Answer | RecordFailure]:
        """Return each answer, or why there is none; generate those that no process has."""
        keys = [_key(question) for question in questions]
        by_key = dict(zip(keys, questions, strict=True))
        logits: dict[str, torch.Tensor | RecordFailure] = {
            key: self._logits[key] for key in by_key if key in self._logits
        }
        failures: dict[str, RecordFailure] = {}
        if any(("", key) not in self._journal.rows for key in by_key):
            failures = self._generate(by_key, logits)
        tokens = {key: self._journal.rows["", key]["tokens"] for key in by_key if key not in failures}
        if with_logits and (others := [key for key in tokens if key not in logits]):
            logits |= self._along({key: by_key[key] for key in others}, tokens)
        self._cache(logits)
        return [failures.get(key) or Answer(tokens[key], logits.get(key)) for key in keys]

    def _generate(self, questions: Mapping[str, Question], logits: dict[str, torch.Tensor]) -> dict[str, RecordFailure]:
        """Generate the answers that no process has, add their logits, and return why others have failed."""
        path = self._journal.path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = Lock(path.with_suffix(".lock"), timeout_s=math.inf)
        try:
            lock.acquire()  # whatever another process generates meanwhile is in the file then
            self._journal.load()
            missing = [key for key in questions if ("", key) not in self._journal.rows]

            def finish(number: int, result: Result) -> None:
                if isinstance(result, Output):
                    self._journal.add({"dataset": "", "_id": missing[number], "tokens": result.tokens})

            asked = [questions[key] for key in missing]
            results, own = self._batches.answer(UNMODIFIED, asked, self._num_logits, finish)
        finally:
            lock.close()
        logits |= {missing[number]: each for number, each in own.items()}
        results = dict(zip(missing, results, strict=True))
        return {key: result for key, result in results.items() if isinstance(result, RecordFailure)}

    def _along(
        self, questions: Mapping[str, Question], tokens: Mapping[str, list[int]]
    ) -> dict[str, torch.Tensor | RecordFailure]:
        """Return the logits of answers of which another process, or an earlier one, has left the tokens alone."""
        asked = []
        for key, question in questions.items():
            first = tokens[key][: self._num_logits]
            asked.append(question._replace(decode=replace(question.decode, max_new_tokens=len(first)), reference=first))
        results, logits = self._batches.answer(UNMODIFIED, asked, self._num_logits)
        return {key: logits.get(number, results[number]) for number, key in enumerate(questions)}

    def _cache(self, logits: Mapping[str, torch.Tensor | RecordFailure]) -> None:
        size = sum(each.nbytes for each in self._logits.values())
        for key, each in logits.items():
            if key not in self._logits and not isinstance(each, RecordFailure) and size + each.nbytes <= _CACHED_BYTES:
                self._logits[key] = each
                size += each.nbytes


def _key(question: Question) -> str:
    """Return a hash of all that decides the unmodified model's answer, for one model."""
    prompt = question.prompt
    return digest({"facts": asdict(prompt.builder.facts), "ids": prompt.ids.tolist()})
