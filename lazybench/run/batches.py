"""Answer prompts in batches that fit the memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from transformers import PreTrainedModel

from lazybench.config import RunConfig
from lazybench.errors import RecordFailure, one_line
from lazybench.methods.base import Method, Output, answer, answers_batches
from lazybench.model.batch import BatchDecoder, can_batch
from lazybench.model.cost import batch_that_fits
from lazybench.model.decoding import Decoder
from lazybench.model.device import ran_out, release
from lazybench.model.prompts import Prompt
from lazyllm import LazyLLMError

T = TypeVar("T")
Result = Output | RecordFailure
Logits = dict[int, torch.Tensor | RecordFailure]

CPU_BATCH = 16  # more sequences gain little where computing takes longer than reading the weights


class Question(NamedTuple):
    """A prompt for a method to answer, with the settings of its dataset and the seed.

    With a `reference`, logits are those along its tokens, in place of the answer's own.
    """

    prompt: Prompt
    decode: Decoder
    seed: int = 0
    reference: list[int] | None = None


def within_memory(prompt: Prompt, work: Callable[[], T]) -> T:
    """Call `work` on a prompt; raises `RecordFailure` where memory ran out, which is then released."""
    try:
        return work()
    except Exception as error:
        if not ran_out(error):
            raise
    # Only out here is the exception gone, and with it all that it kept alive.
    release()
    raise RecordFailure(f"oom: {prompt.ids.shape[1]} tokens of prompt")


def batch_size(model: PreTrainedModel, config: RunConfig, tokens: int) -> int:
    """Return the sequences of a batch; for `auto`, as many of `tokens` tokens each as fit the free memory."""
    if isinstance(config.batch, int):
        return config.batch
    if model.device.type != "cuda":
        return CPU_BATCH
    free, _ = torch.cuda.mem_get_info(model.device)
    return batch_that_fits(model, config.model, tokens, free, num_caches=2 if config.trace else 1)


class Batches:
    """Answers questions several at a time.

    Args:
        model: the model under test.
        size: sequences of a batch.

    Attributes:
        size: sequences of a batch; 1 where the model answers no batches, and halved each time memory runs out.
    """

    def __init__(self, model: PreTrainedModel, size: int) -> None:
        self._can_batch = can_batch(model)
        self.size = size if self._can_batch else 1

    def answer(
        self,
        method: Method,
        questions: Sequence[Question],
        num_logits: int = 0,
        finish: Callable[[int, Result], None] = lambda number, result: None,
    ) -> tuple[list[Result], Logits]:
        """Answer questions; a method that does not answer batches is asked one by one.

        Args:
            method: the method.
            questions: any number of them.
            num_logits: how many first new tokens' logits to return.
            finish: called with the number of a question and its output, or why it failed, as soon as it has ended.

        Returns:
            the results, and by number of the question, where there is an output, the logits of these tokens,
            (tokens, vocabulary), float32, on the CPU, or why there are none.
        """
        results: dict[int, Result] = {}
        logits: Logits = {}
        missing, size = [*range(len(questions))], self.size if self._can_batch else 0

        def end(number: int, result: Result) -> None:
            if number not in results:  # its logits alone may have been missing
                results[number] = result
                finish(number, result)

        def is_missing(number: int) -> bool:
            failed = isinstance(results.get(number), RecordFailure)
            return number not in results or (num_logits > 0 and not failed and number not in logits)

        while missing:
            own = method.for_record(questions[missing[0]].prompt.record)
            numbers = [number for number in missing if method.for_record(questions[number].prompt.record) is own][:size]
            if numbers and answers_batches(own):
                prompts, decoders, seeds, references = zip(*(questions[number] for number in numbers), strict=True)
                end_one = partial(lambda numbers, place, result: end(numbers[place], result), numbers)
                decode = BatchDecoder(decoders, end_one, num_logits, references)
                try:
                    own.generate_batch(prompts, decode, seeds)
                except LazyLLMError:
                    size = 0  # one by one tells which question it is that is refused
                except Exception as error:
                    if not ran_out(error):
                        raise
                    size = len(numbers) // 2
                    self.size = max(1, size)
                else:
                    logits |= {numbers[place]: kept for place, kept in decode.logits.items()}
                    size = 0 if any(map(is_missing, numbers)) else size  # those that `generate_batch` passed over
                decode = None
                if size < len(numbers):
                    release()  # only out here is the exception gone, and with it all that it kept alive
            else:
                number = missing[0]
                result, kept = _answer_one(own, questions[number], num_logits)
                logits |= {} if kept is None else {number: kept}
                end(number, result)
            missing = [*filter(is_missing, missing)]
        return [results[number] for number in range(len(questions))], logits


def _answer_one(
    method: Method, question: Question, num_logits: int
) -> tuple[Result, torch.Tensor | RecordFailure | None]:
    """Return the answer to one question, and the logits as in `Batches.answer`."""
    reference, decode = question.reference, question.decode
    decode = replace(decode, tracing=decode.tracing or num_logits > 0)
    output = _attempt(method, question, decode)
    if isinstance(output, RecordFailure) or not num_logits:
        return output, None
    if reference is None:
        return output, decode.logits[:num_logits]
    before_last = len(reference) - 1
    if len(output.tokens) > before_last and output.tokens[:before_last] == reference[:before_last]:
        return output, decode.logits[: len(reference)]
    decode = replace(decode, forced=reference)
    forced = _attempt(method, question, decode)
    return output, forced if isinstance(forced, RecordFailure) else decode.logits


def _attempt(method: Method, question: Question, decode: Decoder) -> Result:
    """Return a method's answer with a decoder, or why there is none."""
    try:
        return within_memory(question.prompt, lambda: answer(method, question.prompt, decode, question.seed))
    except RecordFailure as failure:
        return failure
    except LazyLLMError as error:
        return RecordFailure(one_line(str(error)))
