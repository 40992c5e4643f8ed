"""Answer prompts in batches that fit the memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from transformers import PreTrainedModel

from lazybench.config import ModelConfig
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

CPU_BATCH = 16  # more sequences gain little where computing takes longer than reading the weights


class Question(NamedTuple):
    """A prompt for a method to answer, with the settings of its dataset and the seed."""

    prompt: Prompt
    decode: Decoder
    seed: int = 0


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


def batch_size(model: PreTrainedModel, config: ModelConfig, tokens: int, batch: int | str) -> int:
    """Return the sequences of a batch; for `auto`, as many of `tokens` tokens each as fit the free memory."""
    if isinstance(batch, int):
        return batch
    if model.device.type != "cuda":
        return CPU_BATCH
    free, _ = torch.cuda.mem_get_info(model.device)
    return batch_that_fits(model, config, tokens, free)


class Batches:
    """Answers questions several at a time.

    Args:
        model: the model under test.
        size: sequences of a batch.

    Attributes:
        size: sequences of a batch; 1 where the model answers no batches, and halved each time memory runs out.
    """

    def __init__(self, model: PreTrainedModel, size: int) -> None:
        self.size = size if can_batch(model) else 1

    def answer(
        self,
        method: Method,
        questions: Sequence[Question],
        num_logits: int = 0,
        finish: Callable[[int, Result], None] = lambda number, result: None,
    ) -> tuple[list[Result], dict[int, torch.Tensor]]:
        """Answer questions; a method that does not answer batches is asked one by one.

        Args:
            method: the method.
            questions: any number of them.
            num_logits: how many first new tokens' logits to return.
            finish: called with the number of a question and its output, or why it failed, as soon as it has ended.

        Returns:
            the results, and by number of the question the logits of these tokens, (tokens, vocabulary), float32, on the
            CPU; see `BatchDecoder.logits`.
        """
        results, logits, missing, size = {}, {}, [*range(len(questions))], self.size

        def end(number: int, result: Result) -> None:
            missing.remove(number)
            results[number] = result
            finish(number, result)

        while missing:
            own = method.for_record(questions[missing[0]].prompt.record)
            numbers = [number for number in missing if method.for_record(questions[number].prompt.record) is own][:size]
            if len(numbers) == 1 or not answers_batches(own):
                number = missing[0]
                result, kept = self._single(own, questions[number], num_logits)
                logits |= {} if kept is None else {number: kept}
                end(number, result)
                continue
            chunk = [questions[number] for number in numbers]
            end_one = partial(lambda numbers, place, result: end(numbers[place], result), numbers)
            decode = BatchDecoder([question.decode for question in chunk], end_one, num_logits)
            try:
                own.generate_batch([each.prompt for each in chunk], decode, [each.seed for each in chunk])
            except LazyLLMError:
                size = 1  # one by one tells which question it is that is refused
            except Exception as error:
                if not ran_out(error):
                    raise
                size = self.size = len(numbers) // 2
            else:
                logits |= {numbers[place]: rows for place, rows in decode.logits.items()}
                continue
            decode = None
            release()  # only out here is the exception gone, and with it all that it kept alive
        return [results[number] for number in range(len(questions))], logits

    @staticmethod
    def _single(method: Method, question: Question, num_logits: int) -> tuple[Result, torch.Tensor | None]:
        prompt, decode, seed = question
        decode = replace(decode, tracing=num_logits > 0)
        try:
            output = within_memory(prompt, lambda: answer(method, prompt, decode, seed))
        except RecordFailure as failure:
            return failure, None
        except LazyLLMError as error:
            return RecordFailure(one_line(str(error))), None
        return output, decode.logits[:num_logits] if num_logits else None
