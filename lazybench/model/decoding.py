"""Greedy generation, timed token by token, the same for every method."""

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.generation.streamers import BaseStreamer

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.model.generation_config import ANSWER_SETTINGS
from lazybench.model.prompts import Prompt

# A model's argument and output that has the cache; transformers 5.24 renamed it.
_INPUTS = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE = "cache" if "cache" in _INPUTS else "past_key_values"


class Clock(BaseStreamer):
    """Takes the time at which each new token's id is known on the host.

    Transformers hands a streamer the prompt first, then each token after copying it to the host, which waits for the
    device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self._cpu_start = 0.0
        self._next_is_prompt = True
        # Seconds since the start, one a new token: wall time, and CPU time of all threads of this process.
        self.times: list[float] = []
        self.cpu_times: list[float] = []

    def start(self) -> None:
        """Start from zero once the device is idle."""
        synchronize(self._device)
        self._next_is_prompt = True
        self.times, self.cpu_times = [], []
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def put(self, value: torch.Tensor) -> None:
        if not self._next_is_prompt:
            self.times.append(time.perf_counter() - self._start)
            self.cpu_times.append(time.process_time() - self._cpu_start)
        self._next_is_prompt = False

    def end(self) -> None:
        """Do nothing: the last token has its time."""


class LogitsCheck(LogitsProcessor):
    """Checks that logits are finite, and changes none.

    Keeps the largest logit of each new token, on the device so that no step waits for it. It is NaN or infinite if any
    logit is NaN or positive infinity, or all are negative infinity: whenever the chosen token means nothing.
    """

    def __init__(self) -> None:
        self._largest: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._largest.append(scores.amax())
        return scores

    def raise_unless_finite(self) -> None:
        """Raise `RecordFailure` if logits of a new token were not finite."""
        finite = torch.stack(self._largest).isfinite().tolist()
        if not all(finite):
            raise not_finite(finite.index(False) + 1)


def not_finite(number: int) -> RecordFailure:
    """Return the failure of an answer whose new token `number`, from 1, has logits that are not finite."""
    cause = "the weights are damaged, or model.dtype is too narrow for them"
    return RecordFailure(f"the logits of new token {number} are not finite: {cause}")


@dataclass
class Decoder:
    """Generates from token ids with the settings of one dataset; methods call it on their version of a prompt."""

    model: PreTrainedModel  # the model under test
    max_new_tokens: int
    stop_ids: list[int] = field(default_factory=list)  # ids that end a generation
    min_new_tokens: int = 0  # tokens before a stop counts
    tokenizer: PreTrainedTokenizerBase | None = None  # for the checkpoint's stop strings; None ignores them
    forced: Sequence[int] | None = None  # new tokens to take (teacher forcing), whatever the settings above say
    tracing: bool = False  # whether this is an untimed pass that keeps logits and positions
    clock: Clock = field(init=False)
    logits: torch.Tensor | None = field(init=False, default=None)  # if tracing: (new tokens, vocabulary), float32, CPU
    answer: list[int] | None = field(init=False, default=None)  # new tokens since `start`; None before
    session: Any = field(init=False, default=None)  # value of the method's `session`, which is entered before `start`

    def __post_init__(self) -> None:
        self.clock = Clock(self.model.device)
        if self.forced is not None:
            self.max_new_tokens, self.stop_ids, self.min_new_tokens = len(self.forced), [], 0
            self.tokenizer = None

    def start(self) -> None:
        """Prepare for one answer, and start the clock."""
        self.answer = None
        self.clock.start()

    def __call__(self, ids: torch.Tensor, **settings: Any) -> list[int]:
        """Generate greedily, once in an answer.

        Args:
            ids: prompt token ids, int64 (1, tokens).
            **settings: of `model.generate`, such as `position_ids` of a shortened prompt, or an empty cache of the
                method's own as `CACHE`.

        Returns:
            the new token ids, the stop included.

        Raises:
            RecordFailure: there is no token, there are more than the model has positions, or logits are not finite.
            LazyBenchError: the answer has been generated already, or `ids` are not of that form.
        """
        if self.answer is not None:
            raise LazyBenchError("decode was called twice in one answer: the clock takes the time of one generation")
        if ids.dtype != torch.int64 or ids.ndim != 2 or ids.shape[0] != 1:
            given = f"a tensor of {ids.dtype} and shape {tuple(ids.shape)}"
            raise LazyBenchError(f"decode was given {given}: it takes token ids, int64 (1, tokens)")
        self.check(ids)
        ids, logits_check = ids.to(self.model.device), LogitsCheck()
        if self.tokenizer is None:
            settings["stop_strings"] = None
        if self.forced is not None:
            settings |= dict.fromkeys(ANSWER_SETTINGS.keys() - {"prefill_chunk_size"})
            settings["prefix_allowed_tokens_fn"] = lambda _, sequence: [self.forced[len(sequence) - ids.shape[1]]]
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
            logits_processor=LogitsProcessorList([logits_check]),
            return_dict_in_generate=self.tracing,
            output_logits=self.tracing,
            **settings,
        )
        logits_check.raise_unless_finite()  # after the last token's time is taken
        if self.tracing:
            self.logits = torch.cat(output.logits).float().cpu()
            output = output.sequences
        self.answer = output[0, ids.shape[1] :].tolist()
        return list(self.answer)

    def check(self, ids: torch.Tensor) -> None:
        """Raise `RecordFailure` if there is no prompt, or the model has too few positions for it and the answer."""
        tokens, limit = ids.shape[1], max_positions(self.model)
        if not tokens:
            raise RecordFailure("empty prompt: there is no token in it")
        if limit is not None and tokens + self.max_new_tokens > limit:
            raise RecordFailure(
                f"{tokens} tokens of prompt and {self.max_new_tokens} new ones are more than the model's {limit}"
            )


def max_positions(model: PreTrainedModel) -> int | None:
    """Return how many tokens of prompt and answer a model (or skeleton) takes; None if its config does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def check_limit(config: ModelConfig, new_tokens: int, model: PreTrainedModel) -> None:
    """Raise `LazyBenchError` if `model.limit` and the new tokens exceed the positions of a model or skeleton."""
    positions = max_positions(model)
    if positions is not None and config.limit + new_tokens > positions:
        raise LazyBenchError(
            f"{config.limit} tokens of prompt and {new_tokens} new ones are more than the {positions} positions of "
            f"{config.name}: set model.limit={positions - new_tokens} or less, and of a text of your own give less"
        )


def decoder_for(model: PreTrainedModel, prompt: Prompt) -> Decoder:
    """Make a decoder with LongBench's settings for the prompt's dataset."""
    facts, tokenizer = prompt.builder.facts, prompt.builder.tokenizer
    if facts.stop_at_newline:
        # The official code names these two, and so leaves out other stops of the model.
        newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
        stops = [*stop_ids(tokenizer.eos_token_id), newline]
        return Decoder(model, facts.max_new_tokens, stops, min_new_tokens=1, tokenizer=tokenizer)
    stops = model.generation_config.eos_token_id
    stops = stop_ids(tokenizer.eos_token_id if stops is None else stops)
    return Decoder(model, facts.max_new_tokens, stops, tokenizer=tokenizer)


def stop_ids(stops: int | list[int] | None) -> list[int]:
    """Return the end tokens of a config or tokenizer as a list."""
    return [] if stops is None else list(stops) if isinstance(stops, list | tuple) else [stops]


def to_text(tokens: list[int], prompt: Prompt) -> str:
    """Decode a prediction, with the model's own post-processing (LongBench, `post_process`)."""
    text = prompt.builder.tokenizer.decode(tokens, skip_special_tokens=True)
    unwanted = prompt.builder.model.remove
    text = text.strip() if unwanted else text
    for words in unwanted:
        text = text.replace(words, "")
    return text


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle; a CPU always is."""
    if device.type == "mps":
        torch.mps.synchronize()  # the only one that takes no device
    elif device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
