"""Greedy generation for several prompts in one batch, each with the settings of its own dataset."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Cache,
    DynamicCache,
    LogitsProcessorList,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

import lazyllm
from lazybench.errors import RecordFailure
from lazybench.model.decoding import CACHE, Decoder, not_finite
from lazybench.model.generation_config import ANSWER_SETTINGS, answer_settings


def can_batch(model: PreTrainedModel) -> bool:
    """Return whether the model gives the same answers in a batch as one by one.

    Layers that carry a state would carry it over padding. Settings of a generation config other than repetition_penalty
    and stop_strings may count padding.
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
        num_logits: number of first new tokens whose logits are kept.
        references: of each prompt, token ids to take the logits along, at most `num_logits`; None for its own answer's.
            If the answer departs from them, they are forced from a copy of the prefilled cache.

    Attributes:
        logits: by number of the prompt: the model's logits at these tokens, (tokens, vocabulary), float32, on the CPU.
    """

    def __init__(
        self,
        decoders: Sequence[Decoder],
        finish: Callable[[int, Any], None],
        num_logits: int = 0,
        references: Sequence[list[int] | None] | None = None,
    ) -> None:
        self.decoders, self.finish = decoders, finish
        self.logits: dict[int, Tensor] = {}
        self._num_logits, self._references = num_logits, references or [None] * len(decoders)

    def __call__(
        self, prompts: Mapping[int, Tensor], output: Callable[[int, list[int]], Any], protect: Tensor | None = None
    ) -> None:
        """Generate the answers; a prompt that the model cannot take fails alone.

        Args:
            prompts: token ids by number of the prompt, int64 (1, tokens).
            output: makes an output from a prompt's index among `prompts` and its new tokens, the stop included.
            protect: tokens that LazyLLM's engine keeps at every stage, bool (prompts, longest prompt), left-padded.
        """
        numbers, rows = [*prompts], [ids[0].cpu() for ids in prompts.values()]
        decoders = {index: self.decoders[number] for index, number in enumerate(numbers)}
        references = {index: self._references[number] for index, number in enumerate(numbers)}
        model, width = self.decoders[0].model, max(map(len, rows))
        # Pad with the first token, so that a repetition penalty meets no token that the prompt lacks.
        ids = torch.stack([torch.cat([row[:1].expand(width - len(row)), row]) for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])

        def finish(index: int, result: list[int] | RecordFailure) -> None:
            self.finish(numbers[index], result if isinstance(result, RecordFailure) else output(index, result))

        cache = DynamicCache(config=model.config.get_text_config(decoder=True)) if any(references.values()) else None
        own = _Answers(decoders, references, self._num_logits, width, finish, cache)
        own.generate(ids, mask, cache, **({} if protect is None else {"protect": protect}))
        logits = own.logits
        forced = {
            index: replace(decoders[index], forced=reference)
            for index, reference in references.items()
            if reference is not None and len(logits[index]) < len(reference)
        }
        if forced:
            first = torch.tensor([[forced[index].forced[0] if index in forced else 0] for index in references])
            ids, mask = torch.cat([ids, first], dim=1), torch.cat([mask, torch.ones_like(first)], dim=1)
            fork = _Answers(forced, references, self._num_logits, width, lambda index, result: None)
            for index in forced:
                fork.tokens[index], fork.logits[index] = references[index][:1], logits[index][:1]
            fork.generate(ids, mask, own.prefilled)
            logits |= fork.logits
        self.logits |= {numbers[index]: torch.stack(kept) for index, kept in logits.items() if kept}


class _Answers(StoppingCriteria):
    """The answers of a batch; each ends by the settings of its own decoder."""

    eos_token_id = None  # tells `generate` to pad sequences that have ended

    def __init__(
        self,
        decoders: Mapping[int, Decoder],
        references: Mapping[int, list[int] | None],
        num_logits: int,
        width: int,
        finish: Callable[[int, list[int] | RecordFailure], None],
        cache: Cache | None = None,
    ) -> None:
        # By index in the batch, the new tokens so far, and the logits of the first ones, (vocabulary,) each; with a
        # reference, only while the answer equals it.
        self.tokens: dict[int, list[int]] = {index: [] for index in decoders}
        self.logits: dict[int, list[Tensor]] = {index: [] for index in decoders}
        self.prefilled: Cache | None = None  # a copy of the cache before the first new token, if there is one to copy
        self._decoders, self._references, self._num_logits = decoders, references, num_logits
        self._width, self._finish, self._cache = width, finish, cache
        self._running = set(decoders)
        self._largest: list[float] = []  # each sequence's largest logit of its newest token
        first = next(iter(decoders.values()))
        self._model, settings = first.model, answer_settings(first.model.generation_config)
        penalty, strings = settings.get("repetition_penalty"), settings.get("stop_strings")
        self._penalise = RepetitionPenaltyLogitsProcessor(penalty) if penalty else None
        self._strings = StopStringCriteria(first.tokenizer, strings) if first.tokenizer and strings else None

    def generate(self, ids: Tensor, mask: Tensor, cache: Cache | None, **settings: Any) -> None:
        """Generate until all answers have ended, from token ids and their mask, int64 (batch, tokens)."""
        more = max(decode.max_new_tokens for decode in self._decoders.values()) - (ids.shape[1] - self._width)
        self._model.generate(
            ids.to(self._model.device),
            attention_mask=mask.to(self._model.device),
            max_new_tokens=more,
            do_sample=False,
            num_beams=1,
            eos_token_id=None,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([self.process]),
            stopping_criteria=StoppingCriteriaList([self]),
            **{CACHE: cache},
            **dict.fromkeys(ANSWER_SETTINGS),  # those of `can_batch` are applied here
            **settings,
        )

    def process(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Keep logits, (batch, vocabulary), and apply each decoder's settings, as a logits processor."""
        if self._cache is not None and self.prefilled is None:
            self.prefilled = copy.deepcopy(self._cache)
        self._largest, num_new = scores.amax(dim=-1).tolist(), input_ids.shape[1] - self._width
        logits = scores.to("cpu", torch.float32, copy=True) if num_new < self._num_logits else None
        if self._penalise is not None:
            scores = self._penalise(input_ids, scores)
        for index in self._running:
            decode, reference = self._decoders[index], self._references[index]
            follows = reference is None or (num_new < len(reference) and self.tokens[index] == reference[:num_new])
            if logits is not None and follows:
                self.logits[index].append(logits[index])
            if num_new < decode.min_new_tokens:
                scores[index, decode.stop_ids] = -math.inf
            if decode.forced is not None:
                scores[index] = -math.inf
                scores[index, decode.forced[num_new]] = 0
        return scores

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return which sequences have ended, bool (batch,)."""
        newest = input_ids[:, -1].tolist()
        by_string = self._strings(input_ids, scores).tolist() if self._strings else [False] * len(newest)
        for index in sorted(self._running):
            decode, tokens = self._decoders[index], self.tokens[index]
            tokens.append(newest[index])
            is_finite = decode.forced is not None or math.isfinite(self._largest[index])
            is_full = len(tokens) == decode.max_new_tokens
            if is_finite and not (newest[index] in decode.stop_ids or by_string[index] or is_full):
                continue
            self._running.remove(index)
            self._finish(index, tokens if is_finite else not_finite(len(tokens)))
        return torch.tensor([index not in self._running for index in range(len(newest))], device=input_ids.device)
