"""The cost of prefill and decode: operations, time and memory, from token counts and a model's size."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from timeit import repeat
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lazybench.config import ModelConfig
from lazybench.model.device import device_of, dtype_of
from lazybench.model.loading import cached

# One A100 in bfloat16: the rate that prefill reaches of its 312e12 operations a second, and Python's time a layer.
_A100_OPERATIONS_PER_S = 140e12
_A100_BYTES_PER_S = 1.5e12
_A100_LAYER_STEP_S = 0.9e-3
_CUDA_BYTES = 1e9  # what CUDA and its libraries allocate for themselves
_MEASURED_TOKENS = 1024


class Pace(NamedTuple):
    """Seconds of an operation in prefill and of a decode step; `warms`: an untimed pass precedes each new shape."""

    operation_s: float
    step_s: float
    warms: bool


def operations(model: PreTrainedModel, layer_tokens: Sequence[float]) -> float:
    """Return the operations of prefill, given the number of tokens that each layer computes.

    Two for each matrix weight and token, four for each head dimension and attending pair, in layers of the model's mean
    size. Experts count as if a token met all of them. Embeddings and the vocabulary, of one token, are left out.
    """
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    parameters = model.get_decoder().named_parameters()  # encoders of images and sound have layers of their own
    weights = sum(weight.numel() for name, weight in parameters if "layers." in name and weight.ndim > 1)
    weights /= config.num_hidden_layers
    return sum(2 * weights * tokens + 2 * width * tokens * (tokens + 1) for tokens in layer_tokens)


def unpruned_operations(model: PreTrainedModel, lengths: Sequence[float]) -> float:
    """Return the operations of the unmodified model's prefill, summed over prompts of these lengths."""
    return operations(model, model.config.get_text_config().num_hidden_layers * [*lengths])


def ideal_ttft(model: PreTrainedModel, ttft_s: Mapping[int, float], layer_tokens: Sequence[int]) -> float:
    """Return the sum over layers of the unmodified model's time per layer at that layer's number of tokens.

    Args:
        model: the model that was timed.
        ttft_s: the unmodified model's time to first token by prompt length, in seconds.
        layer_tokens: the number of tokens that each layer computes.
    """
    return sum(ttft_s[count] for count in layer_tokens) / model.config.get_text_config().num_hidden_layers


def a100_pace(model: PreTrainedModel, config: ModelConfig) -> Pace:
    """Estimate the pace of one A100: a decode step reads all weights and waits for Python."""
    layers = model.config.get_text_config().num_hidden_layers
    step = layers * _A100_LAYER_STEP_S + model.num_parameters() * _element_size(config) / _A100_BYTES_PER_S
    return Pace(1 / _A100_OPERATIONS_PER_S, step, warms=True)


def measure_pace(model: PreTrainedModel, config: ModelConfig) -> Pace | None:
    """Measure the pace of this machine with random weights of one layer and of two.

    Returns None where the model's weights or its device are not here, or where it cannot be cut to so few layers.
    """
    tokens, times = min(_MEASURED_TOKENS, config.limit), []
    try:
        if not cached(config):
            return None
        device, kind = device_of(config), {"dtype": dtype_of(config), "attn_implementation": config.attention}
        for layers in (1, 2):
            small = deepcopy(model.config)
            small.get_text_config().num_hidden_layers = layers
            with device:
                times.append(_prefill_and_step_s(AutoModelForCausalLM.from_config(small, **kind).eval(), tokens))
    except Exception:  # a model's own code may raise anything, and memory may run out
        return None
    more = model.config.get_text_config().num_hidden_layers - 1
    prefill, step = (one + more * max(two - one, 0) for one, two in zip(*times, strict=True))
    return Pace(prefill / unpruned_operations(model, [tokens]), step, warms=device.type != "cpu")


@torch.no_grad()
def _prefill_and_step_s(model: PreTrainedModel, tokens: int) -> list[float]:
    """Return the seconds of prefilling `tokens` tokens and of a decode step after them, each the best of three."""
    ids = torch.ones(1, tokens, dtype=torch.long, device=model.device)
    cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
    runs = (lambda: model(ids, logits_to_keep=1), lambda: model(ids[:, :1], past_key_values=cache))
    return [min(repeat(lambda run=run: run().logits.argmax().item(), number=1, repeat=3)) for run in runs]


def memory_gb(model: PreTrainedModel, config: ModelConfig, tokens: float) -> float:
    """Estimate the GPU memory of a generation of `tokens` tokens, prompt and answer together, in GB."""
    text, size = model.config.get_text_config(), _element_size(config)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv = 2 * text.num_hidden_layers * heads * width * tokens * size
    inner = getattr(text, "intermediate_size", 4 * text.hidden_size)
    activations = tokens * (8 * text.hidden_size + 3 * inner) * size
    return (model.num_parameters() * size + kv + activations + _CUDA_BYTES) / 1e9


def _element_size(config: ModelConfig) -> int:
    return 4 if config.dtype == "float32" else 2
