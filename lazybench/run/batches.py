"""Answer questions in batches that fit the memory, those of the unmodified model once for all methods of a sweep."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import Tensor, cuda
from transformers import PreTrainedModel

from lazybench.config import RunConfig
from lazybench.errors import RecordFailure, one_line
from lazybench.identity import digest
from lazybench.methods.base import Method, Output, answer
from lazybench.model.cost import batch_that_fits
from lazybench.model.decoding import Decoder, Question
from lazybench.model.device import ran_out, release
from lazybench.model.generation_config import answer_settings
from lazybench.run.divergence import UNMODIFIED
from lazybench.store.journal import Journal
from lazybench.store.locks import locked
from lazyllm import LazyLLMError

T = TypeVar("T")
Answers = list[Output | RecordFailure]

CPU_BATCH = 4  # batches of 16 took 1.4 to 1.6 times as long (SmolLM2, 1,000 tokens, one thread)
# The logits of the first tokens are cached for later jobs of the process, up to about this many bytes.
_CACHED_BYTES = 4e9
_cached: dict[str, dict[str, Tensor]] = {}


class OutOfMemory(RecordFailure):
    """Memory ran out."""


def attempt(questions: Sequence[Question], work: Callable[[], T]) -> T:
    """Call `work`, which answers `questions`, and turn expected errors into `RecordFailure`.

    Raises:
        OutOfMemory: memory ran out; everything that `work` allocated is released.
        RecordFailure: the method, or LazyLLM, refuses a prompt.
    """
    try:
        return work()
    except LazyLLMError as error:
        raise RecordFailure(one_line(str(error))) from error
    except Exception as error:
        if not ran_out(error):
            raise
    release()  # after the `except`, whose traceback keeps the pass's tensors alive
    raise OutOfMemory(f"oom: {max(question.prompt.ids.shape[1] for question in questions)} tokens of prompt")


def batch_size(model: PreTrainedModel, config: RunConfig, tokens: int) -> int:
    """Return the number of sequences per batch; `auto` is how many of `tokens` tokens fit the free CUDA memory.

    On other devices `auto` is `CPU_BATCH`. It is 1 for a model whose answers would differ in a batch: layers with a
    state would carry it over padding, and most settings of a generation config may count padding.
    """
    if model._is_stateful or answer_settings(model.generation_config).keys() - {"repetition_penalty", "stop_strings"}:
        return 1
    if isinstance(config.batch, int):
        return config.batch
    if model.device.type != "cuda":
        return CPU_BATCH
    release()  # memory that an earlier job of the sweep left cached
    free, _ = cuda.mem_get_info(model.device)
    return batch_that_fits(model, config.model, tokens, free, num_caches=2 if config.trace else 1)


class Batches:
    """Answer questions in batches."""

    def __init__(self, model: PreTrainedModel, size: int) -> None:
        self.model = model
        self.size = size  # sequences per batch, halved each time memory runs out

    def answer(self, method: Method, questions: Sequence[Question], num_logits: int = 0) -> Answers:
        """Return, in order, answers with the logits of their first `num_logits` tokens, or failures.

        The questions of a batch that fails are answered one by one, or in smaller batches if memory ran out.
        """
        answers: Answers = []
        while len(answers) < len(questions):
            batch = questions[len(answers) :][: self.size if method.can_batch else 1]
            decode = Decoder(self.model, batch, num_logits)
            try:
                outputs = attempt(batch, partial(answer, method, decode))
            except RecordFailure as failure:
                outputs, is_oom = None, isinstance(failure, OutOfMemory)
                if len(batch) == 1:
                    answers.append(failure)
            if outputs is not None:
                kept = decode.logits or [None] * len(batch)
                answers += [replace(output, logits=logits) for output, logits in zip(outputs, kept, strict=True)]
            elif len(batch) > 1 and is_oom:
                self.size = len(batch) // 2
            elif len(batch) > 1:  # after the `except`, whose traceback keeps the pass's tensors alive
                answers += [self.answer(method, [question], num_logits)[0] for question in batch]
        return answers


class Unmodified:
    """The unmodified model's answers, generated once for all methods of a sweep.

    Tokens are in a file that processes share, logits in this process's memory.

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

    def answers(self, questions: Sequence[Question], with_logits: bool) -> Answers:
        """Return each answer, if asked with the logits of its first tokens, or its failure; generate missing ones."""
        by_key, path = {_key(question): question for question in questions}, self._journal.path
        answers: dict[str, Output | RecordFailure] = {}
        if any(("", key) not in self._journal.rows for key in by_key):
            with locked(path.with_suffix(".lock"), timeout_s=math.inf):
                self._journal.load()  # another process may have added answers
                missing = {key: each for key, each in by_key.items() if ("", key) not in self._journal.rows}
                answers |= self._generate(missing)
                for key, answer in answers.items():
                    if isinstance(answer, Output):
                        self._journal.add({"dataset": "", "_id": key, "tokens": answer.tokens})
        known = {key: self._journal.rows["", key]["tokens"] for key in by_key if key not in answers}
        answers |= {key: Output(tokens, 1.0, logits=self._logits.get(key)) for key, tokens in known.items()}
        forced = {
            key: by_key[key]._replace(reference=tokens[: self._num_logits], is_forced=True)
            for key, tokens in known.items()
            if with_logits and answers[key].logits is None  # other processes store the tokens, but no logits
        }
        for key, answer in self._generate(forced).items():
            is_failed = isinstance(answer, RecordFailure)
            answers[key] = answer if is_failed else replace(answers[key], logits=answer.logits)
        if sum(logits.nbytes for logits in self._logits.values()) < _CACHED_BYTES:
            kept = {key: answer.logits for key, answer in answers.items() if isinstance(answer, Output)}
            self._logits |= {key: logits for key, logits in kept.items() if logits is not None}
        return [answers[_key(question)] for question in questions]

    def _generate(self, questions: dict[str, Question]) -> dict[str, Output | RecordFailure]:
        answers = self._batches.answer(UNMODIFIED, [*questions.values()], self._num_logits)
        return dict(zip(questions, answers, strict=True))


def _key(question: Question) -> str:
    """Return a hash of everything that the answer of one unmodified model depends on."""
    prompt = question.prompt
    return digest({"dataset": asdict(prompt.builder.dataset_config), "ids": prompt.ids.tolist()})
