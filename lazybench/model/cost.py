"""The cost of prefill and decode: operations, time and memory, from token counts and a model's size."""

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedModel

from lazybench.config import ModelConfig

# One A100 in bfloat16: operations per second in prefill (peak: 312e12), memory bandwidth, Python's time per layer for
# one sequence and for a batch (measured on an H100: 0.65 to 0.8 ms, and up to 1.9 times as much for a batch), memory.
_A100_OPERATIONS_PER_S = 140e12
_A100_BYTES_PER_S = 1.5e12
_A100_LAYER_STEP_S, _A100_BATCH_LAYER_STEP_S = 0.9e-3, 1.4e-3
_A100_BYTES = 80e9
_CUDA_BYTES = 1e9  # allocated by CUDA and its libraries
_MEMORY_SHARE = 0.9  # of free memory that a batch may fill
_LARGEST_BATCH = 64  # by then reading the weights is a small part of a decode step


class Pace(NamedTuple):
    """Seconds per operation in prefill, per decode step of one sequence, and per sequence in a batch's step."""

    operation_s: float
    step_s: float
    batched_step_s: float


def operations(model: PreTrainedModel, layer_tokens: Sequence[float]) -> float:
    """Return the operations of prefill, given the number of tokens that each layer computes.

    Count two per matrix weight and token, and four per head dimension and attending pair, in layers of the model's mean
    size. Every token counts for all experts. Embeddings and the output layer, run on one token, are left out.
    """
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    parameters = model.get_decoder().named_parameters()  # encoders of images and sound have layers of their own
    weights = sum(weight.numel() for name, weight in parameters if "layers." in name and weight.ndim > 1)
    weights /= config.num_hidden_layers
    return sum(2 * weights * tokens + 2 * width * tokens * (tokens + 1) for tokens in layer_tokens)


def unmodified_operations(model: PreTrainedModel, lengths: Sequence[float]) -> float:
    """Return the operations of the unmodified model's prefill, summed over prompts of these lengths."""
    return operations(model, model.config.get_text_config().num_hidden_layers * [*lengths])


def a100_pace(model: PreTrainedModel, config: ModelConfig, tokens: int, batch: int | str) -> Pace:
    """Estimate the pace of one A100, where Python runs while the device reads weights and caches.

    A prompt and its answer have `tokens` at most; `batch` is the number of sequences, or `auto`.
    """
    layers, weights = model.config.get_text_config().num_hidden_layers, model.num_parameters() * _element_size(config)
    size = batch if isinstance(batch, int) else batch_that_fits(model, config, tokens, _A100_BYTES - weights)
    steps = [
        max(layers * layer_s, (weights + number * cache_bytes(model, config, tokens)) / _A100_BYTES_PER_S)
        for number, layer_s in ((1, _A100_LAYER_STEP_S), (size, _A100_BATCH_LAYER_STEP_S))
    ]
    return Pace(1 / _A100_OPERATIONS_PER_S, steps[0], steps[1] / size if size > 1 else steps[0])


def batch_that_fits(
    model: PreTrainedModel, config: ModelConfig, tokens: float, free: float, num_caches: int = 1
) -> int:
    """Return how many sequences of `tokens` tokens fit a device's `free` bytes with their caches, 1 to 64."""
    sequence = (memory_gb(model, config, tokens) - memory_gb(model, config, 0)) * 1e9
    sequence += (num_caches - 1) * cache_bytes(model, config, tokens)
    return max(1, min(_LARGEST_BATCH, int(_MEMORY_SHARE * free / sequence)))


def cache_bytes(model: PreTrainedModel, config: ModelConfig, tokens: float) -> float:
    """Return the bytes of the keys and values of `tokens` tokens."""
    text = model.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * width * tokens * _element_size(config)


def memory_gb(model: PreTrainedModel, config: ModelConfig, tokens: float) -> float:
    """Estimate the GPU memory of a generation of `tokens` tokens, prompt and answer together, in GB."""
    text, size = model.config.get_text_config(), _element_size(config)
    inner = getattr(text, "intermediate_size", 4 * text.hidden_size)
    activations = tokens * (8 * text.hidden_size + 3 * inner) * size
    return (model.num_parameters() * size + cache_bytes(model, config, tokens) + activations + _CUDA_BYTES) / 1e9


def _element_size(config: ModelConfig) -> int:
    return 4 if config.dtype == "float32" else 2
