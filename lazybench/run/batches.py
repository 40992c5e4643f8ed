"""Answer prompts in batches that fit the memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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

CPU_BATCH = 4  # batches of 16 took 1.4 to 1.6 times as long (SmolLM2, 1,000 tokens, one thread)


class Question(NamedTuple):
    """A prompt for a method to answer, with the settings of its dataset and the seed.

    With a `reference`, logits are taken along its tokens instead of the answer's own.
    """

    prompt: Prompt
    decode: Decoder
    seed: int = 0
    reference: list[int] | None = None


def within_memory(prompt: Prompt, work: Callable[[], T]) -> T:
    """Call `work` for a prompt; if memory runs out, release it and raise `RecordFailure` with the prompt's length."""
    try:
        return work()
    except Exception as error:
        if not ran_out(error):
            raise
    release()  # after the `except`, whose traceback keeps the pass's tensors alive
    raise _out_of_memory(prompt)


def _out_of_memory(prompt: Prompt) -> RecordFailure:
    return RecordFailure(f"oom: {prompt.ids.shape[1]} tokens of prompt")


def batch_size(model: PreTrainedModel, config: RunConfig, tokens: int) -> int:
    """Return the number of sequences of a batch; for `auto`, how many of `tokens` tokens each fit the free CUDA memory.

    On other devices `auto` is `CPU_BATCH`.
    """
    if isinstance(config.batch, int):
        return config.batch
    if model.device.type != "cuda":
        return CPU_BATCH
    release()  # what an earlier job of the sweep has left cached
    free, _ = torch.cuda.mem_get_info(model.device)
    return batch_that_fits(model, config.model, tokens, free, num_caches=2 if config.trace else 1)


class Batches:
    """Answers questions several at a time."""

    def __init__(self, model: PreTrainedModel, size: int) -> None:
        self._can_batch = can_batch(model)
        self.size = size if self._can_batch else 1  # sequences of a batch, halved each time memory runs out

    def answer(
        self,
        method: Method,
        questions: Sequence[Question],
        num_logits: int = 0,
        finish: Callable[[int, Result], None] = lambda number, result: None,
    ) -> tuple[list[Result], dict[int, torch.Tensor]]:
        """Answer questions; a method or model that does not answer batches is asked one by one.

        Args:
            method: the method.
            questions: any number of them.
            num_logits: how many first new tokens' logits to return.
            finish: called with the number of a question and its output, or why it failed, as soon as it has ended.

        Returns:
            the results in order; and by the number of each question that has an output, the logits of its first new
            tokens, (tokens, vocabulary), float32, on the CPU.
        """
        results: dict[int, Result] = {}
        logits: dict[int, torch.Tensor] = {}
        missing, size = [*range(len(questions))], self.size if self._can_batch and answers_batches(method) else 0

        def end(number: int, result: Result) -> None:
            if number not in results:  # else it was asked again for its logits
                results[number] = result
                finish(number, result)

        def is_missing(number: int) -> bool:
            has_failed = isinstance(results.get(number), RecordFailure)
            return number not in results or (num_logits > 0 and number not in logits and not has_failed)

        while missing:
            numbers, failure = missing[: size or 1], None
            chunk = [questions[number] for number in numbers]
            try:
                if size:
                    logits |= _answer_batch(method, dict(zip(numbers, chunk, strict=True)), num_logits, end)
                else:
                    result, own_logits = _answer_one(method, chunk[0], num_logits)
                    end(numbers[0], result)
                    logits |= {numbers[0]: own_logits} if num_logits else {}
            except (RecordFailure, LazyLLMError) as error:
                failure = RecordFailure(one_line(str(error)))
                size = min(size, 1)  # retry one by one to find the refused question
            except Exception as error:
                if not ran_out(error):
                    raise
                failure = _out_of_memory(chunk[0].prompt)
                if len(chunk) > 1:
                    size = self.size = len(chunk) // 2
            if failure is None:
                size = 0 if any(map(is_missing, numbers)) else size  # `generate_batch` skipped some: ask one by one
            else:
                release()  # after the `except`, whose traceback keeps the pass's tensors alive
                if size and len(chunk) == 1:
                    size = 0  # alone a question needs less memory, and no engine
                elif len(chunk) == 1:
                    end(numbers[0], failure)
                    results[numbers[0]] = failure  # also where its logits alone were missing
            missing = [*filter(is_missing, missing)]
        return [results[number] for number in range(len(questions))], logits


def _answer_batch(
    method: Method, questions: Mapping[int, Question], num_logits: int, end: Callable[[int, Result], None]
) -> dict[int, torch.Tensor]:
    """Answer questions at once, and return the logits as in `Batches.answer`."""
    numbers, (prompts, decoders, seeds, references) = [*questions], zip(*questions.values(), strict=True)
    decode = BatchDecoder(decoders, lambda index, result: end(numbers[index], result), num_logits, references)
    method.generate_batch(prompts, decode, seeds)
    return {numbers[index]: kept for index, kept in decode.logits.items()}


def _answer_one(method: Method, question: Question, num_logits: int) -> tuple[Output, torch.Tensor | None]:
    """Return the answer to one question, and the logits as in `Batches.answer`."""
    prompt, decode, seed, reference = question
    decode = replace(decode, tracing=decode.tracing or num_logits > 0)
    output = answer(method, prompt, decode, seed)
    if reference is not None and output.tokens[: len(reference)] != reference:
        decode = replace(decode, forced=reference)
        answer(method, prompt, decode, seed)
    length = num_logits if reference is None else len(reference)
    return output, decode.logits[:length] if num_logits else None
