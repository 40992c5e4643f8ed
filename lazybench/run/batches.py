"""Answer questions in batches that fit the memory."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor, cuda
from transformers import PreTrainedModel

from lazybench.config import RunConfig
from lazybench.errors import RecordFailure, one_line
from lazybench.methods.base import Method, Output, answer
from lazybench.model.cost import batch_that_fits
from lazybench.model.decoding import Decoder, Question, can_batch
from lazybench.model.device import ran_out, release
from lazyllm import LazyLLMError

T = TypeVar("T")

CPU_BATCH = 4  # batches of 16 took 1.4 to 1.6 times as long (SmolLM2, 1,000 tokens, one thread)


class Answer(NamedTuple):
    """A method's output, and the logits that were kept, (tokens, vocabulary), float32, on the CPU."""

    output: Output
    logits: Tensor | None


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

    On other devices `auto` is `CPU_BATCH`. It is 1 for a model whose answers would differ in a batch.
    """
    if not can_batch(model):
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

    def answer(
        self, method: Method, questions: Sequence[Question], num_logits: int = 0
    ) -> list[Answer | RecordFailure]:
        """Return, in order, answers with the logits of their first `num_logits` tokens, or failures."""
        answers: list[Answer | RecordFailure] = []
        while len(answers) < len(questions):
            size = self.size if method.can_batch else 1
            answers += self._answer(method, questions[len(answers) :][:size], num_logits)
        return answers

    def _answer(self, method: Method, questions: Sequence[Question], num_logits: int) -> list[Answer | RecordFailure]:
        """Answer questions in one batch; if that fails, one by one, or in halves if memory ran out."""
        decode = Decoder(self.model, questions, num_logits)
        try:
            outputs = attempt(questions, lambda: answer(method, decode))
        except RecordFailure as failure:
            if len(questions) == 1:
                return [failure]
            size = 1
            if isinstance(failure, OutOfMemory):
                size = self.size = len(questions) // 2
        else:
            return [Answer(*pair) for pair in zip(outputs, decode.logits or [None] * len(outputs), strict=True)]
        parts = (questions[start : start + size] for start in range(0, len(questions), size))
        return [each for part in parts for each in self._answer(method, part, num_logits)]
