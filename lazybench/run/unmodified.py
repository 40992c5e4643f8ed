"""The unmodified model's answers and logits, generated once for all methods of a sweep.

LazyLLM's engine with nothing pruned generates them in batches, if it supports the model.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from lazybench.errors import RecordFailure
from lazybench.identity import digest
from lazybench.model.decoding import Question
from lazybench.run.batches import Answer, Batches
from lazybench.run.divergence import UNMODIFIED
from lazybench.store.journal import Journal
from lazybench.store.locks import Lock
from lazybench.store.writing import writing

# The logits of the first tokens are cached for later jobs of the process, up to this many bytes.
_CACHED_BYTES = 4e9
_cached: dict[str, dict[str, Tensor]] = {}


class UnmodifiedAnswer(NamedTuple):
    """The unmodified model's answer."""

    tokens: list[int]  # token ids
    logits: Tensor | None  # of the first tokens, (tokens, vocabulary), float32, on the CPU; None unless requested

    @property
    def reference(self) -> list[int] | None:
        """The tokens that have logits."""
        return None if self.logits is None else self.tokens[: len(self.logits)]


class Unmodified:
    """Answers of one unmodified model: tokens in a file that processes share, logits in this process's memory.

    Args:
        path: the file, of one model on one device.
        batches: generates missing answers.
        num_logits: number of first tokens whose logits are kept; 0 for none.
    """

    def __init__(self, path: Path, batches: Batches, num_logits: int) -> None:
        self._journal, self._batches, self._num_logits = Journal(path), batches, num_logits
        model = f"{path} {num_logits}"
        if model not in _cached:
            _cached.clear()
        self._logits = _cached.setdefault(model, {})

    def answers(self, questions: Sequence[Question], with_logits: bool) -> list[UnmodifiedAnswer | RecordFailure]:
        """Return each answer or its failure; generate those that no process has stored."""
        by_key, rows = {_key(question): question for question in questions}, self._journal.rows
        logits = {key: self._logits[key] for key in by_key if key in self._logits}
        failures: dict[str, RecordFailure] = {}
        if any(("", key) not in rows for key in by_key):
            failures = self._generate(by_key, logits)
        # Other processes store the tokens, but no logits.
        others = {key: each for key, each in by_key.items() if with_logits and key not in {**failures, **logits}}
        for key, question in others.items():
            reference = rows["", key]["tokens"][: self._num_logits]
            others[key] = question._replace(reference=reference, is_forced=True)
        failures |= {key: each for key, each in self._ask(others, logits).items() if isinstance(each, RecordFailure)}
        self._cache(logits)
        keys = map(_key, questions)
        return [failures.get(key) or UnmodifiedAnswer(rows["", key]["tokens"], logits.get(key)) for key in keys]

    def _generate(self, questions: Mapping[str, Question], logits: dict[str, Tensor]) -> dict[str, RecordFailure]:
        """Generate and store the answers that no process has stored; see `_ask`."""
        path, failures = self._journal.path, {}
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = Lock(path.with_suffix(".lock"), timeout_s=math.inf)
        with closing(lock):
            lock.acquire()  # another process may have added answers meanwhile
            self._journal.load()
            missing = {key: each for key, each in questions.items() if ("", key) not in self._journal.rows}
            for key, answer in self._ask(missing, logits).items():
                if isinstance(answer, RecordFailure):
                    failures[key] = answer
                else:
                    self._journal.add({"dataset": "", "_id": key, "tokens": answer.output.tokens})
        return failures

    def _ask(self, questions: Mapping[str, Question], logits: dict[str, Tensor]) -> dict[str, Answer | RecordFailure]:
        """Return answers by key, and add the logits of their first tokens to `logits`."""
        answers = dict(
            zip(questions, self._batches.answer(UNMODIFIED, [*questions.values()], self._num_logits), strict=True)
        )
        kept = {key: each.logits for key, each in answers.items() if isinstance(each, Answer)}
        logits |= {key: each for key, each in kept.items() if each is not None}
        return answers

    def _cache(self, logits: Mapping[str, Tensor]) -> None:
        size = sum(each.nbytes for each in self._logits.values())
        for key, each in logits.items():
            if key not in self._logits and size + each.nbytes <= _CACHED_BYTES:
                self._logits[key] = each
                size += each.nbytes


def _key(question: Question) -> str:
    """Return a hash of everything that the answer of one unmodified model depends on."""
    prompt = question.prompt
    return digest({"dataset": asdict(prompt.builder.dataset_config), "ids": prompt.ids.tolist()})
