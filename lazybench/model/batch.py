"""Greedy generation for several prompts in one batch, each with the settings of its own dataset."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

import lazyllm
from lazybench.errors import RecordFailure
from lazybench.model.decoding import Decoder, not_finite
from lazybench.model.generation_config import ANSWER_SETTINGS, answer_settings


def can_batch(model: PreTrainedModel) -> bool:
    """Return whether the model gives the same answers in a batch as one by one.

    Layers that carry a state would carry it over padding, and other settings of a generation config than these two may
    count the tokens of a padded prompt.
    """
    settings = answer_settings(model.generation_config).keys()
    return not model._is_stateful and settings <= {"repetition_penalty", "stop_strings"}


def unpruned(model: PreTrainedModel) -> AbstractContextManager[Any]:
    """Return LazyLLM's engine with nothing pruned, which computes no padding and no ended sequence.

    Where the engine does not support the model, the model itself computes the padded batch.
    """
    try:
        return lazyllm.enable(model, ())
    except lazyllm.LazyLLMError:
        return nullcontext()


class BatchDecoder:
    """Generates the answers to several prompts in one batch; `Method.generate_batch` calls it once.

    Args:
        decoders: of each prompt, all on one model.
        finish: called with a prompt's number and its output as soon as its answer has ended, or with what failed.
        num_logits: how many first new tokens' logits are kept.

    Attributes:
        logits: by number of the prompt: the logits of these tokens, (tokens, vocabulary), float32, on the CPU; none
            where settings of the generation config change logits.
    """

    def __init__(self, decoders: Sequence[Decoder], finish: Callable[[int, Any], None], num_logits: int = 0) -> None:
        self.decoders, self.finish = decoders, finish
        self.logits: dict[int, Tensor] = {}
        self._num_logits = num_logits

    def __call__(self, prompts: Mapping[int, Tensor], output: Callable[[int, list[int]], Any], **settings: Any) -> None:
        """Generate the answers; a prompt that the model cannot take fails alone.

        Args:
            prompts: token ids by number of the prompt, int64 (1, tokens).
            output: makes an output from a prompt's place among `prompts` and its new tokens, the stop included.
            **settings: of `model.generate`; tensors have a row for each of `prompts`.
        """
        decoders, model = [self.decoders[number] for number in prompts], self.decoders[0].model
        width, rows = max(ids.shape[1] for ids in prompts.values()), [ids[0].cpu() for ids in prompts.values()]
        # The first token pads, so that no penalty on the prompt's tokens meets another one than without padding.
        ids = torch.stack([torch.cat([row[:1].expand(width - len(row)), row]) for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        numbers, num_logits = [*prompts], self._num_logits
        if decoders[0].forced is not None:
            settings |= dict.fromkeys(ANSWER_SETTINGS)
        elif "repetition_penalty" in answer_settings(model.generation_config):
            num_logits = 0  # it has changed them

        def finish(place: int, result: list[int] | RecordFailure) -> None:
            self.finish(numbers[place], result if isinstance(result, RecordFailure) else output(place, result))

        answers = _Answers(decoders, width, finish, num_logits)
        model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max(decode.max_new_tokens for decode in decoders),
            do_sample=False,
            num_beams=1,
            eos_token_id=None,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([answers.process]),
            stopping_criteria=StoppingCriteriaList([answers]),
            **{**settings, "stop_strings": None},
        )
        self.logits |= {number: torch.stack(own) for number, own in zip(numbers, answers.logits, strict=True) if own}


class _Answers(StoppingCriteria):
    """The answers of a batch; each ends by the settings of its own decoder."""

    eos_token_id = None  # tells `generate` to pad sequences that have ended

    def __init__(
        self,
        decoders: Sequence[Decoder],
        width: int,
        finish: Callable[[int, list[int] | RecordFailure], None],
        num_logits: int,
    ) -> None:
        self.logits: list[list[Tensor]] = [[] for _ in decoders]  # of each sequence's first `num_logits` tokens
        self._decoders, self._width, self._finish, self._num_logits = decoders, width, finish, num_logits
        self._tokens: list[list[int]] = [[] for _ in decoders]
        self._running = set(range(len(decoders)))
        self._largest: list[float] = []  # each sequence's largest logit of its newest token
        strings = decoders[0].model.generation_config.stop_strings if decoders[0].tokenizer else None
        self._strings = StopStringCriteria(decoders[0].tokenizer, strings) if strings else None

    def process(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Keep what is needed of the logits (batch, vocabulary), and apply each decoder's settings: a processor."""
        self._largest, number = scores.amax(dim=-1).tolist(), input_ids.shape[1] - self._width
        copied = scores.to("cpu", torch.float32, copy=True) if number < self._num_logits else None
        for place in self._running:
            decode = self._decoders[place]
            if copied is not None:
                self.logits[place].append(copied[place])
            if number < decode.min_new_tokens:
                scores[place, decode.stop_ids] = -math.inf
            if decode.forced is not None:
                scores[place] = -math.inf
                scores[place, decode.forced[number]] = 0
        return scores

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return which sequences have ended, bool (batch,)."""
        newest = input_ids[:, -1].tolist()
        by_string = self._strings(input_ids, scores).tolist() if self._strings else [False] * len(newest)
        for place in sorted(self._running):
            decode, tokens = self._decoders[place], self._tokens[place]
            tokens.append(newest[place])
            is_finite = math.isfinite(self._largest[place])
            is_full = len(tokens) == decode.max_new_tokens
            if is_finite and not (newest[place] in decode.stop_ids or by_string[place] or is_full):
                continue
            self._running.remove(place)
            self._finish(place, tokens if is_finite else not_finite(len(tokens)))
        return torch.tensor([place not in self._running for place in range(len(newest))], device=input_ids.device)
