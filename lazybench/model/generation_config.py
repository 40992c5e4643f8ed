"""The part of a checkpoint's generation config that changes greedy answers; the benchmark chooses the rest."""

from typing import Any

from transformers import GenerationConfig

# Each setting with the value, beside None, that changes no answer.
ANSWER_SETTINGS = {
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
IGNORED = vars(GenerationConfig()).keys() - {*ANSWER_SETTINGS, *_TOKENS}
"""Sampling, beams, caches, assistants, outputs and limits."""


def answer_settings(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings that change greedy answers or how they are computed, by name."""
    values = config.to_dict()
    neutral = {name: (None, [], value) for name, value in ANSWER_SETTINGS.items()}
    return {name: values[name] for name in ANSWER_SETTINGS if values.get(name) not in neutral[name]}


def greedy(config: GenerationConfig) -> GenerationConfig:
    """Return a generation config with the special tokens and `answer_settings` of a checkpoint's, and nothing else."""
    return GenerationConfig(**{name: getattr(config, name) for name in _TOKENS}, **answer_settings(config))
