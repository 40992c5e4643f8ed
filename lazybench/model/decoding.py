"""Greedy generation with a clock in it, the same for every method."""

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    Cache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.generation.streamers import BaseStreamer

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.model.prompts import Prompt

# What of a checkpoint's generation config counts: what changes greedy answers, each with the value that changes none.
_ANSWER_SETTINGS = {
    "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "min_length": 0,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1,
    "watermarking_config": None,
    "stop_strings": None,
    "prefill_chunk_size": None,
}
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
# All else: samples, beams, caches, assistants, outputs and limits are the benchmark's to choose.
NOT_COUNTED = vars(GenerationConfig()).keys() - {*_ANSWER_SETTINGS, *_TOKENS}


def answer_settings(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings of a generation config that change greedy answers or how they are computed, by name."""
    stated = config.to_dict()
    neutral = {name: (None, value, []) for name, value in _ANSWER_SETTINGS.items()}
    return {name: stated[name] for name, values in neutral.items() if stated.get(name) not in values}


def for_greedy(config: GenerationConfig) -> GenerationConfig:
    """Return a generation config with the special tokens and `answer_settings` of a checkpoint's, and nothing else."""
    return GenerationConfig(**{name: getattr(config, name) for name in _TOKENS}, **answer_settings(config))


class Clock(BaseStreamer):
    """Notes when each new token's id is known on the host.

    Transformers hands a streamer the prompt first, then each token after copying it to the host, which waits
    for the device.

    Attributes:
        times: seconds of wall time since the start, one a new token.
        cpu_times: seconds of CPU time that this process, all its threads together, has had by then.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self._cpu_start = 0.0
        self._prompt_seen = False
        self.times: list[float] = []
        self.cpu_times: list[float] = []

    def start(self) -> None:
        """Start from zero, once the device has finished what it was given before."""
        synchronize(self._device)
        self._prompt_seen = False
        self.times, self.cpu_times = [], []
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            self.times.append(time.perf_counter() - self._start)
            self.cpu_times.append(time.process_time() - self._cpu_start)
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing to do: the last token has been noted."""


class GreatestLogits(LogitsProcessor):
    """Notes the greatest logit of each new token and changes nothing.

    It is NaN or infinite where any logit is NaN or positive infinity, or all are negative infinity: wherever the
    token chosen means nothing. It stays on the device, so that no step waits for it.
    """

    def __init__(self) -> None:
        self._greatest: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._greatest.append(scores.amax())
        return scores

    def check(self) -> None:
        """Raise `RecordFailure` if logits of a new token were not finite."""
        finite = torch.stack(self._greatest).isfinite().tolist()
        if not all(finite):
            raise RecordFailure(
                f"the logits of new token {finite.index(False) + 1} are not finite: the weights are damaged, or "
                "model.dtype is too narrow for them"
            )


@dataclass
class Decoder:
    """Generates from token ids with the settings of one dataset; methods call it on what they make of a prompt."""

    model: PreTrainedModel  # the model under test
    max_new_tokens: int  # tokens to generate at most
    stop_ids: list[int] = field(default_factory=list)  # that end a generation; without, it runs to `max_new_tokens`
    min_new_tokens: int = 0  # tokens before a stop counts
    tokenizer: PreTrainedTokenizerBase | None = None  # for the checkpoint's stop strings; without, they end nothing
    # The new tokens, where they are not the model's to choose (teacher forcing); the settings above then do not matter.
    forced: Sequence[int] | None = None
    tracing: bool = False  # an untimed pass that looks inside; keeps the logits
    clock: Clock = field(init=False)  # notes the time of each token
    # In a tracing pass those of each new token, (new tokens, vocabulary), float32, on the CPU.
    logits: torch.Tensor | None = field(init=False, default=None)
    answer: list[int] | None = field(init=False, default=None)  # what it returned since `start`; None before
    session: Any = field(init=False, default=None)  # what the method's own session gave, entered before `start`

    def __post_init__(self) -> None:
        self.clock = Clock(self.model.device)
        if self.forced is not None:
            self.max_new_tokens, self.stop_ids, self.min_new_tokens = len(self.forced), [], 0
            self.tokenizer = None

    def start(self) -> None:
        """Be ready for one answer, the clock at zero."""
        self.answer = None
        self.clock.start()

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor | None = None, cache: Cache | None = None
    ) -> list[int]:
        """Generate greedily, once in an answer.

        Args:
            ids: prompt token ids, int64 (1, tokens).
            positions: where each of them stands, rising, int64 (1, tokens): a shortened prompt's own places. The answer
                goes on behind the last one. None: they follow each other. See `check_takes_positions`.
            cache: an empty cache of transformers, which the generation fills; None for its own.

        Returns:
            the new token ids, the stop included.

        Raises:
            RecordFailure: there is no token, there are more than the model can hold, or logits are not finite.
            LazyBenchError: the answer has been generated already, `ids` or `positions` are not of that form, or the
                model takes no positions.
        """
        if self.answer is not None:
            raise LazyBenchError("decode was called twice in one answer: the clock takes the time of one generation")
        if ids.dtype != torch.int64 or ids.ndim != 2 or ids.shape[0] != 1:
            given = f"a tensor of {ids.dtype} and shape {tuple(ids.shape)}"
            raise LazyBenchError(f"decode was given {given}: it takes token ids, int64 (1, tokens)")
        self.check(ids)
        given = {} if positions is None else {"position_ids": self._checked(positions, ids).to(self.model.device)}
        given |= {} if cache is None else {"past_key_values": cache}
        ids, greatest = ids.to(self.model.device), GreatestLogits()
        if self.tokenizer is None:
            given["stop_strings"] = None
        if self.forced is not None:
            given |= dict.fromkeys(_ANSWER_SETTINGS.keys() - {"prefill_chunk_size"})
            given["prefix_allowed_tokens_fn"] = lambda _, seen: [self.forced[len(seen) - ids.shape[1]]]
        output = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens or None,
            do_sample=False,
            num_beams=1,
            eos_token_id=self.stop_ids or None,
            pad_token_id=self.stop_ids[0] if self.stop_ids else None,
            tokenizer=self.tokenizer,
            streamer=self.clock,
            logits_processor=LogitsProcessorList([greatest]),
            return_dict_in_generate=self.tracing,
            output_logits=self.tracing,
            **given,
        )
        greatest.check()  # after the last token's time has been noted
        if self.tracing:
            self.logits = torch.cat(output.logits).float().cpu()
            output = output.sequences
        self.answer = output[0, ids.shape[1] :].tolist()
        return list(self.answer)

    def check(self, ids: torch.Tensor) -> None:
        """Raise `RecordFailure` unless there is a prompt, and it and the new tokens have positions in the model."""
        if not ids.shape[1]:
            raise RecordFailure("empty prompt: there is no token in it")
        self._check_room(ids.shape[1])

    def _check_room(self, tokens: int) -> None:
        holds = positions_of(self.model)
        if holds is not None and tokens + self.max_new_tokens > holds:
            raise RecordFailure(
                f"{tokens} tokens of prompt and {self.max_new_tokens} new ones are more than the model's {holds}"
            )

    def _checked(self, positions: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if positions.dtype != torch.int64 or positions.shape != ids.shape:
            given = f"a tensor of {positions.dtype} and shape {tuple(positions.shape)}"
            raise LazyBenchError(f"decode was given {given} as positions: it takes one a token, int64 {(*ids.shape,)}")
        if int(positions[0, 0]) < 0 or not bool((positions.diff() > 0).all()):
            raise LazyBenchError("decode was given positions that do not rise from 0 or more")
        check_takes_positions(self.model)
        self._check_room(int(positions[0, -1]) + 1)
        return positions


def check_takes_positions(model: PreTrainedModel) -> None:
    """Raise `LazyBenchError` unless `model` computes the tokens of a shortened prompt at positions of their own."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise LazyBenchError(f"{type(model).__name__} takes no positions: a token's is its place in the prompt it gets")
    if "flash" in str(model.config._attn_implementation):  # transformers takes gaps there for ends of packed texts
        raise LazyBenchError("positions with gaps are not possible on FlashAttention: set model.attention=sdpa")


def positions_of(model: PreTrainedModel) -> int | None:
    """Most tokens of prompt and answer together, maybe of a model without weights; None where no config says it."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def check_limit(config: ModelConfig, new_tokens: int, model: PreTrainedModel) -> None:
    """Raise `LazyBenchError` if `model.limit` and the new tokens are more than the model, maybe a skeleton, holds."""
    holds = positions_of(model)
    if holds is not None and config.limit + new_tokens > holds:
        raise LazyBenchError(
            f"{config.limit} tokens of prompt and {new_tokens} new ones are more than the {holds} positions of "
            f"{config.name}: set model.limit={holds - new_tokens} or less, and of a text of your own give less"
        )


def decoder_for(model: PreTrainedModel, prompt: Prompt) -> Decoder:
    """The decoder with LongBench's settings for the prompt's dataset."""
    facts, tokenizer = prompt.builder.facts, prompt.builder.tokenizer
    if facts.stop_at_newline:
        # The official code names these two and so leaves out other stops of the model's own.
        newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
        stops = [*stop_ids(tokenizer.eos_token_id), newline]
        return Decoder(model, facts.max_new_tokens, stops, min_new_tokens=1, tokenizer=tokenizer)
    stops = model.generation_config.eos_token_id
    stops = stop_ids(tokenizer.eos_token_id if stops is None else stops)
    return Decoder(model, facts.max_new_tokens, stops, tokenizer=tokenizer)


def stop_ids(stops: int | list[int] | None) -> list[int]:
    """The ids that a config or a tokenizer names as an end, none or one or several, as a list."""
    return [] if stops is None else list(stops) if isinstance(stops, list | tuple) else [stops]


def read(tokens: list[int], prompt: Prompt) -> str:
    """The text of a prediction, after the model's own post-processing (LongBench, `post_process`)."""
    text = prompt.builder.tokenizer.decode(tokens, skip_special_tokens=True)
    unwanted = prompt.builder.model.remove
    text = text.strip() if unwanted else text
    for words in unwanted:
        text = text.replace(words, "")
    return text


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all it was given; a CPU always has."""
    if device.type == "mps":
        torch.mps.synchronize()  # there is one, and its function takes no device
    elif device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
