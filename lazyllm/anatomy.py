"""Finds the decoder layers of a model, and refuses models that LazyLLM cannot prune right."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from lazyllm.attention import NAME
from lazyllm.errors import LazyLLMError

# Attention that sees every earlier token, or those in a window or chunk of true positions.
_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")


@dataclass(frozen=True)
class Anatomy:
    """Where the parts of a model are that LazyLLM works on.

    Attributes:
        decoder: the module that runs the decoder layers one after the other.
        layers: the decoder layers.
    """

    decoder: PreTrainedModel
    layers: nn.ModuleList


def dissect(model: nn.Module) -> Anatomy:
    """Find the decoder of a Hugging Face model.

    Raises:
        LazyLLMError: not a decoder-only transformer whose attention goes through transformers' attention
            interface, or one with parts that pruning would break.
    """
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise LazyLLMError(f"{name} is not a Hugging Face model: give lazyllm.enable a transformers PreTrainedModel")
    if getattr(model.config, "is_encoder_decoder", False):
        raise LazyLLMError(f"{name} is an encoder-decoder: LazyLLM prunes decoder-only models")
    found = [
        Anatomy(module, child)
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
        for child in module.children()
        if isinstance(child, nn.ModuleList) and _is_layer_stack(child)
    ]
    if len(found) != 1:
        what = "no stack" if not found else f"{len(found)} stacks"
        raise LazyLLMError(
            f"{name} has {what} of decoder layers with attention in every layer: LazyLLM needs exactly one"
        )
    _refuse_unsupported(name, found[0], model)
    return found[0]


def _is_layer_stack(stack: nn.ModuleList) -> bool:
    """Whether every module of the list holds attention that knows its own depth."""
    return len(stack) > 0 and all(
        any(getattr(part, "layer_idx", None) == index for part in layer.modules()) for index, layer in enumerate(stack)
    )


def _refuse_unsupported(name: str, anatomy: Anatomy, model: PreTrainedModel) -> None:
    decoder, config = anatomy.decoder, anatomy.decoder.config
    kinds = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if kinds:
        raise LazyLLMError(f"{name} has {', '.join(sorted(kinds))} layers: LazyLLM prunes softmax attention only")
    if any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in anatomy.layers.modules()):
        raise LazyLLMError(
            f"{name} mixes neighbouring tokens by convolution in its layers: pruning would change what they see"
        )
    if not getattr(config, "is_causal", True):
        raise LazyLLMError(f"{name} is configured with bidirectional attention: LazyLLM needs causal attention")
    if not getattr(decoder, "_supports_attention_backend", False):
        raise LazyLLMError(f"the attention of {name} does not go through transformers' attention interface")
    if not decoder._supports_sdpa and getattr(config, "attn_logit_softcapping", None) is None:
        raise LazyLLMError(f"the attention of {name} is not plain softmax attention: LazyLLM cannot score it")
    implementation = config._attn_implementation
    if implementation == NAME:
        raise LazyLLMError("LazyLLM is already enabled on this model: leave the first `with` before the next")
    if implementation not in _ATTENTION:
        raise LazyLLMError(
            f"attention implementation {implementation!r} is not supported: load the model with "
            "attn_implementation='sdpa' or 'flash_attention_2'"
        )
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise LazyLLMError(f"{name} is spread over {listed}: LazyLLM needs the whole model on one device")


def rope_switch(config: PreTrainedConfig) -> int | None:
    """Number of positions beyond which a model with LongRoPE changes its rotary tables, else None.

    The unmodified model computes its whole cache anew there.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    return rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
