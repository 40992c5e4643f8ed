"""The unmodified model's answers and logits, generated once for all methods of a sweep.

Where it can, the engine with nothing pruned generates them in batches.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import torch

from lazybench.errors import RecordFailure
from lazybench.identity import digest
from lazybench.methods.base import Output
from lazybench.run.batches import Batches, Question, Result
from lazybench.run.divergence import UnmodifiedAnswer
from lazybench.run.timing import UNMODIFIED
from lazybench.store.journal import Journal
from lazybench.store.locks import Lock
from lazybench.store.writing import writing

# The logits of the first tokens are cached for later jobs of the process, up to this many bytes.
_CACHED_BYTES = 4e9
_cached: dict[str, dict[str, torch.Tensor]] = {}


class Unmodified:
    """Answers of one unmodified model: tokens in a file, for all processes, and first logits in this one's memory.

    Args:
        path: the file, of one model in one environment.
        batches: generates missing answers.
        num_logits: how many first tokens' logits are needed; 0 for none.
    """

    def __init__(self, path: Path, batches: Batches, num_logits: int) -> None:
        self._journal, self._batches, self._num_logits = Journal(path), batches, num_logits
        model = f"{path} {num_logits}"
        if model not in _cached:
            _cached.clear()
        self._logits = _cached.setdefault(model, {})

    def answers(
        self, questions: Sequence[Question], with_logits: bool = False
    ) -> list[UnmodifiedAnswer | RecordFailure]:
        """Return each answer, or why there is none; generate those that no process has."""
        keys, rows = [_key(question) for question in questions], self._journal.rows
        by_key = dict(zip(keys, questions, strict=True))
        logits = {key: self._logits[key] for key in by_key if key in self._logits}
        failures = {}
        if any(("", key) not in rows for key in by_key):
            failures = self._generate(by_key, logits)
        if with_logits:  # other processes store the tokens, but no logits
            others = {key: each for key, each in by_key.items() if key not in failures and key not in logits}
            for key, question in others.items():
                reference = rows["", key]["tokens"][: self._num_logits]
                decode = replace(question.decode, max_new_tokens=len(reference))
                others[key] = question._replace(decode=decode, reference=reference)
            failures |= self._ask(others, logits)
        self._cache(logits)
        return [failures.get(key) or UnmodifiedAnswer(rows["", key]["tokens"], logits.get(key)) for key in keys]

    def _generate(self, questions: Mapping[str, Question], logits: dict[str, torch.Tensor]) -> dict[str, RecordFailure]:
        """Generate the answers that no process has, for all processes; see `_ask`."""
        path = self._journal.path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = Lock(path.with_suffix(".lock"), timeout_s=math.inf)
        with closing(lock):
            lock.acquire()  # another process may have added answers meanwhile
            self._journal.load()
            missing = {key: each for key, each in questions.items() if ("", key) not in self._journal.rows}

            def finish(number: int, result: Result) -> None:
                if isinstance(result, Output):
                    self._journal.add({"dataset": "", "_id": [*missing][number], "tokens": result.tokens})

            return self._ask(missing, logits, finish)

    def _ask(
        self,
        questions: Mapping[str, Question],
        logits: dict[str, torch.Tensor],
        finish: Callable[[int, Result], None] = lambda number, result: None,
    ) -> dict[str, RecordFailure]:
        """Answer questions, add the logits of the first tokens, and return those that have failed."""
        results, own = self._batches.answer(UNMODIFIED, [*questions.values()], self._num_logits, finish)
        keys = [*questions]
        logits |= {keys[number]: each for number, each in own.items()}
        return {key: each for key, each in zip(keys, results, strict=True) if isinstance(each, RecordFailure)}

    def _cache(self, logits: Mapping[str, torch.Tensor]) -> None:
        size = sum(each.nbytes for each in self._logits.values())
        for key, each in logits.items():
            if key not in self._logits and size + each.nbytes <= _CACHED_BYTES:
                self._logits[key] = each
                size += each.nbytes


def _key(question: Question) -> str:
    """Return a hash of all that decides the unmodified model's answer, for one model."""
    prompt = question.prompt
    return digest({"facts": asdict(prompt.builder.facts), "ids": prompt.ids.tolist()})
