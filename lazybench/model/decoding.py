"""Generate a batch of answers greedily, timed token by token, in the same way for every method."""

import copy
import inspect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    Cache,
    DynamicCache,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.model.generation_config import ANSWER_SETTINGS, answer_settings
from lazybench.model.prompts import Prompt

# A model's argument and output that has the cache; transformers 5.24 renamed it.
_INPUTS = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE = "cache" if "cache" in _INPUTS else "past_key_values"


@dataclass(frozen=True)
class Stops:
    """The conditions that end an answer."""

    max_new_tokens: int
    stop_ids: Sequence[int] = ()
    min_new_tokens: int = 0  # tokens before a stop counts
    tokenizer: PreTrainedTokenizerBase | None = None  # for the checkpoint's stop strings; None ignores them


class Question(NamedTuple):
    """A prompt to answer.

    With a `reference`, logits are taken along its tokens instead of the answer's. If `is_forced`, the reference itself
    is generated, and the stops are ignored.
    """

    prompt: Prompt
    stops: Stops
    seed: int = 0
    reference: Sequence[int] | None = None
    is_forced: bool = False


class Decoder:
    """Generate the answers to a batch of questions, once; a method calls it with its versions of the prompts.

    Args:
        model: the model under test.
        questions: the questions.
        num_logits: number of first new tokens whose logits are kept.
        tracing: whether LazyLLM's engine records positions; implied by `num_logits`.

    Attributes:
        times: seconds from `start` until each new token of the batch was known on the host.
        answers: by question, the new token ids; None before.
        logits: by question, the model's logits at its first new tokens or along its reference, (tokens, vocabulary),
            float32, on the CPU.
        session: value of the method's `session`, which is entered before `start`.
    """

    def __init__(
        self, model: PreTrainedModel, questions: Sequence[Question], num_logits: int = 0, tracing: bool = False
    ) -> None:
        self.model, self.questions, self.num_logits = model, questions, num_logits
        self.tracing = tracing or num_logits > 0
        self.started = 0.0  # when the clock started
        self.times: list[float] = []
        self.answers: list[list[int]] | None = None
        self.logits: list[Tensor] = []
        self.session: Any = None
        strings, tokenizer = answer_settings(model.generation_config).get("stop_strings"), questions[0].stops.tokenizer
        self.strings = StopStringCriteria(tokenizer, strings) if strings and tokenizer else None

    def start(self) -> None:
        """Start the clock once the device is idle."""
        device = self.model.device
        if device.type == "mps":
            torch.mps.synchronize()  # the only backend without a device argument
        elif device.type != "cpu":
            torch.get_device_module(device).synchronize(device)
        self.started = time.perf_counter()

    def __call__(self, prompts: Sequence[Tensor], **settings: Any) -> list[list[int]]:
        """Generate greedily; return the new token ids for each question, the stop included.

        Args:
            prompts: token ids for each question, int64 (1, tokens).
            **settings: of `model.generate`, such as `position_ids` of a shortened prompt.

        Raises:
            RecordFailure: a prompt is empty or longer than the model supports, or logits are not finite.
            LazyBenchError: the answers have been generated already, or `prompts` are not of that form.
        """
        if self.answers is not None:
            raise LazyBenchError("decode was called twice: only one generation is timed")
        limit = max_positions(self.model)
        for ids, question in zip(prompts, self.questions, strict=True):
            if ids.ndim != 2:
                raise LazyBenchError(f"decode was given ids of shape {tuple(ids.shape)}: it expects (1, tokens)")
            tokens, new = ids.shape[1], question.stops.max_new_tokens
            if not tokens:
                raise RecordFailure("empty prompt: there is no token in it")
            if limit is not None and tokens + new > limit:
                raise RecordFailure(f"{tokens} tokens of prompt and {new} new ones are more than the model's {limit}")
        width = max(ids.shape[1] for ids in prompts)
        # Pad with the first token, so that a repetition penalty meets no token that the prompt lacks.
        padded = [torch.cat([ids[:, :1].expand(1, width - ids.shape[1]), ids], dim=1) for ids in prompts]
        mask = torch.tensor([[0] * (width - ids.shape[1]) + [1] * ids.shape[1] for ids in prompts])
        ids, may_depart = torch.cat(padded), any(each.reference and not each.is_forced for each in self.questions)
        cache = DynamicCache(config=self.model.config.get_text_config(decoder=True)) if may_depart else None
        own = _Generation(self, self.questions, width, cache)
        self._generate(own, ids, mask, cache, **settings)
        self.times, self.answers = own.times, own.tokens
        if self.num_logits:
            self.logits = self._along_references(own, ids, mask)
        return [[*tokens] for tokens in self.answers]

    def _along_references(self, own: "_Generation", ids: Tensor, mask: Tensor) -> list[Tensor]:
        """Return the logits of each question; references that answers depart from are generated, too."""
        logits, questions = own.logits, []
        for question, kept in zip(self.questions, logits, strict=True):
            reference = question.reference
            has_departed = reference is not None and len(kept) < min(len(reference), self.num_logits)
            questions.append(question._replace(is_forced=True) if has_departed else None)
        if any(questions):
            first = torch.tensor([[0 if each is None else each.reference[0]] for each in questions])
            fork = _Generation(self, questions, own.width)
            for index, question in enumerate(questions):
                if question is not None:
                    fork.tokens[index], fork.logits[index] = [question.reference[0]], logits[index][:1]
            ids, mask = torch.cat([ids, first], dim=1), torch.cat([mask, torch.ones_like(first)], dim=1)
            self._generate(fork, ids, mask, own.prefilled)
            logits = [fork.logits[index] if each else logits[index] for index, each in enumerate(questions)]
        return [torch.stack(kept) for kept in logits]

    def _generate(self, run: "_Generation", ids: Tensor, mask: Tensor, cache: Cache | None, **settings: Any) -> None:
        # Settings that change answers must not change references; `_Generation` checks stop strings per question.
        unset = ANSWER_SETTINGS.keys() - {"prefill_chunk_size"} if run.is_forced else {"stop_strings"}
        hook = self.model.register_forward_hook(run.see_pass, with_kwargs=True) if self.num_logits else None
        try:
            self.model.generate(
                ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                max_new_tokens=max(run.lengths.values()) - max(map(len, run.tokens)),
                do_sample=False,
                num_beams=1,
                eos_token_id=None,
                pad_token_id=0,
                logits_processor=LogitsProcessorList([run.process]),
                stopping_criteria=StoppingCriteriaList([run]),
                **{CACHE: cache},
                **dict.fromkeys(unset),
                **settings,
            )
        finally:
            if hook is not None:
                hook.remove()


class _Generation(StoppingCriteria):
    """One call of `generate`; each sequence ends by the stops of its question, or at once if that is None."""

    eos_token_id = None  # tells `generate` to pad sequences that have ended

    def __init__(
        self, decoder: Decoder, questions: Sequence[Question | None], width: int, cache: Cache | None = None
    ) -> None:
        self.width = width
        self.times: list[float] = []  # see `Decoder`
        self.tokens: list[list[int]] = [[] for _ in questions]  # new tokens so far
        # Logits of the first new tokens, (vocabulary,) each; with a reference, only while the answer equals it.
        self.logits: list[list[Tensor]] = [[] for _ in questions]
        self.prefilled: Cache | None = None  # a copy of `cache` before the first new token
        self.is_forced = any(question is not None and question.is_forced for question in questions)
        self._decoder, self._questions, self._cache = decoder, questions, cache
        self.lengths = {  # the most new tokens of each question
            index: len(each.reference) if each.is_forced else each.stops.max_new_tokens
            for index, each in enumerate(questions)
            if each is not None
        }
        self._running = {*self.lengths}
        self._raw: Tensor | None = None  # logits of the newest tokens before any processor, (batch, vocabulary)
        self._own_cache: Any = None  # the cache of the first pass
        self._largest: Tensor | None = None  # logit of each newest token, (batch,)

    def see_pass(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Keep the logits of a forward pass, as its hook, but not of guidance's passes, which have another cache."""
        cache = kwargs.get(CACHE)
        self._own_cache = cache if self._raw is None else self._own_cache
        if cache is self._own_cache:
            self._raw = output.logits[:, -1]

    def process(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Keep logits, and apply the questions' settings to `scores`, (batch, vocabulary), as a logits processor."""
        if self._cache is not None and self.prefilled is None:
            self.prefilled = copy.deepcopy(self._cache)
        number = input_ids.shape[1] - self.width
        raw = self._raw.to("cpu", torch.float32, copy=True) if number < self._decoder.num_logits else None
        self._largest = scores.amax(dim=-1)
        for index in self._running:
            question = self._questions[index]
            reference = question.reference
            follows = reference is None or (number < len(reference) and self.tokens[index] == [*reference[:number]])
            if raw is not None and follows:
                self.logits[index].append(raw[index])
            if question.is_forced:
                scores[index] = -math.inf
                scores[index, reference[number]] = 0
            elif number < question.stops.min_new_tokens:
                scores[index, [*question.stops.stop_ids]] = -math.inf
        return scores

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return which sequences have ended, bool (batch,).

        Raises:
            RecordFailure: a token was chosen by logits that are not finite.
        """
        # The host waits for the device here, once: float32 holds every id below 2**24.
        newest, largest = torch.stack([input_ids[:, -1].float(), self._largest.float()]).tolist()
        self.times.append(time.perf_counter() - self._decoder.started)
        strings = self._decoder.strings
        by_string = [False] * len(newest) if strings is None else strings(input_ids, scores).tolist()
        for index in sorted(self._running):
            question, tokens = self._questions[index], self.tokens[index]
            tokens.append(int(newest[index]))
            has_stopped = False
            if not question.is_forced:
                if not math.isfinite(largest[index]):
                    cause = "the weights are damaged, or model.dtype is too narrow for them"
                    raise RecordFailure(f"the logits of new token {len(tokens)} are not finite: {cause}")
                has_stopped = tokens[-1] in question.stops.stop_ids or by_string[index]
            if has_stopped or len(tokens) == self.lengths[index]:
                self._running.remove(index)
        return torch.tensor([index not in self._running for index in range(len(newest))], device=input_ids.device)


def max_positions(model: PreTrainedModel) -> int | None:
    """Return how many tokens of prompt and answer a model (or skeleton) supports; None if its config has no limit."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def check_limit(config: ModelConfig, new_tokens: int, model: PreTrainedModel) -> None:
    """Raise `LazyBenchError` if `model.limit` and the new tokens exceed the positions of a model or skeleton."""
    positions = max_positions(model)
    if positions is not None and config.limit + new_tokens > positions:
        raise LazyBenchError(
            f"{config.limit} tokens of prompt and {new_tokens} new ones are more than the {positions} positions of "
            f"{config.name}: set model.limit={positions - new_tokens} or less, or shorten a text of your own"
        )


def question_of(model: PreTrainedModel, prompt: Prompt) -> Question:
    """Return a prompt as a question, with LongBench's settings for its dataset."""
    config, tokenizer = prompt.builder.dataset_config, prompt.builder.tokenizer
    ends = model.generation_config.eos_token_id
    if config.stop_at_newline or ends is None:
        ends = [] if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    stop_ids = [*ends] if isinstance(ends, list | tuple) else [ends]
    if config.stop_at_newline:
        # The official code lists only this and the tokenizer's EOS, which excludes other stops of the model.
        stop_ids.append(tokenizer.encode("\n", add_special_tokens=False)[-1])
    least = 1 if config.stop_at_newline else 0
    return Question(prompt, Stops(config.max_new_tokens, stop_ids, least, tokenizer))


def to_text(tokens: list[int], prompt: Prompt) -> str:
    """Decode a prediction, with the model's own post-processing (LongBench, `post_process`)."""
    text = prompt.builder.tokenizer.decode(tokens, skip_special_tokens=True)
    unwanted = prompt.builder.model.remove
    text = text.strip() if unwanted else text
    for words in unwanted:
        text = text.replace(words, "")
    return text
