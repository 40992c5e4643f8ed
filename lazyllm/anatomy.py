"""Finds the decoder layers of a model, and refuses models that LazyLLM cannot prune right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel

from lazyllm.attention import NAME
from lazyllm.errors import LazyLLMError
from lazyllm.row_by_row import check_row_by_row

# Attention that sees every earlier token, or those in a window or chunk of true positions.
_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
# Layers that carry a state from token to token, past those that a stage leaves behind.
_STATEFUL = {"linear_attention", "conv", "mamba", "recurrent", "hybrid", "hybrid_sliding"}
# Settings of what layers take besides hidden states, and what they do to the model.
_BESIDES = {
    "altup_num_inputs": "has several hidden states a token",
    "num_kv_shared_layers": "has layers that share keys and values",
}
# Rotary tables that depend on the length of the text.
_CHANGING = {"dynamic", "longrope"}
_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
COMPILED = "{} is compiled, which would pass LazyLLM by: load it anew and leave out torch.compile"
ENABLED = (
    "LazyLLM is already enabled on this model, or on one with the same config object: leave the first `with` before "
    "the next"
)


@dataclass(frozen=True)
class Anatomy:
    """The module that runs the decoder layers of a model one after the other, and these layers.

    Attributes:
        group: the processes among which the model's heads are split; None means one process.
    """

    decoder: PreTrainedModel
    layers: nn.ModuleList
    group: ProcessGroup | None = None


def dissect(model: nn.Module, newest_only: bool = False) -> Anatomy:
    """Find the decoder of a Hugging Face model, with `newest_only` also of one without a language-modelling head.

    Raises:
        LazyLLMError: not a decoder-only transformer whose attention goes through transformers' attention
            interface, or one with parts that pruning would break.
    """
    name = type(model).__name__
    if isinstance(getattr(model, "_orig_mod", None), PreTrainedModel):
        raise LazyLLMError(COMPILED.format(type(model._orig_mod).__name__))
    if not isinstance(model, PreTrainedModel):
        raise LazyLLMError(f"{name} is not a Hugging Face model: give lazyllm.enable a transformers PreTrainedModel")
    if getattr(model.config, "is_encoder_decoder", False):
        raise LazyLLMError(f"{name} is an encoder-decoder: LazyLLM prunes decoder-only models, such as Llama or Qwen")
    if model.can_generate() and not isinstance(model, GenerationMixin):
        raise LazyLLMError(f"{name} does not generate token by token, which LazyLLM is for")
    found = [
        Anatomy(module, child)
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
        for child in module.children()
        if isinstance(child, nn.ModuleList) and _is_layer_stack(child)
    ]
    if len(found) > 1:
        # What sees or hears may be built alike.
        found = [part for part in found if part.decoder is model.get_decoder()] or found
    if len(found) != 1:
        what = "no stack" if not found else f"{len(found)} stacks"
        raise LazyLLMError(
            f"{name} has {what} of decoder layers with attention in every layer: LazyLLM needs a decoder-only language "
            "model with exactly one"
        )
    if not model.can_generate() and model is not found[0].decoder:
        raise LazyLLMError(
            f"{name} gives other outputs than a language model's, of hidden states that LazyLLM does not compute: give "
            "lazyllm.enable the language model, or the decoder alone with newest_only=True"
        )
    if not model.can_generate() and not newest_only:
        raise LazyLLMError(
            f"{name} has no language-modelling head, and its hidden states are of every token: LazyLLM computes the "
            "newest token's alone, which newest_only=True accepts"
        )
    _refuse_unsupported(name, found[0], model)
    _refuse_altered(name, found[0], model)
    return replace(found[0], group=_tensor_parallel(name, model))


def check_same(model: PreTrainedModel, anatomy: Anatomy) -> None:
    """Raise `LazyLLMError` unless the model has the decoder that `dissect` found, and parts that are known."""
    _check_attention(anatomy.decoder)
    decoder = any(part is anatomy.decoder for part in model.modules())
    if not decoder or not any(child is anatomy.layers for child in anatomy.decoder.children()):
        raise LazyLLMError(f"{type(model).__name__} was taken apart since lazyllm.enable looked at it: call it again")
    check_row_by_row(model)


def _check_attention(decoder: PreTrainedModel) -> None:
    implementation = decoder.config._attn_implementation
    if implementation == NAME:
        raise LazyLLMError(ENABLED)
    if implementation not in _ATTENTION:
        known = "'sdpa' or 'flash_attention_2'" if decoder._supports_sdpa else "'eager'"
        raise LazyLLMError(
            f"attention implementation {implementation!r} is not supported: load the model with "
            f"attn_implementation={known}"
        )


def _is_layer_stack(stack: nn.ModuleList) -> bool:
    """Whether every module of the list holds attention that knows its own depth."""
    return len(stack) > 0 and all(
        any(getattr(part, "layer_idx", None) == index for part in layer.modules()) for index, layer in enumerate(stack)
    )


def _refuse_unsupported(name: str, anatomy: Anatomy, model: PreTrainedModel) -> None:
    decoder, config = anatomy.decoder, anatomy.decoder.config
    kinds = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if stateful := sorted(kinds & _STATEFUL):
        raise LazyLLMError(
            f"{name} has {', '.join(stateful)} layers, which carry a state over all tokens in order, and a token that "
            "comes back later cannot enter it: shorten the prompt before the model instead"
        )
    if kinds:
        raise LazyLLMError(
            f"{name} has {', '.join(sorted(kinds))} layers, which choose or merge tokens themselves: LazyLLM prunes "
            "softmax attention over all of them"
        )
    for setting, what in _BESIDES.items():
        if getattr(config, setting, None):
            raise LazyLLMError(f"{name} {what} ({setting}), which LazyLLM does not know how to prune")
    if any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in anatomy.layers.modules()):
        raise LazyLLMError(
            f"{name} mixes neighbouring tokens by convolution in its layers: pruning would change what they see"
        )
    if any(getattr(part, "rope_type", None) in _CHANGING for part in anatomy.layers.modules()):
        raise LazyLLMError(
            f"{name} makes its rotary tables inside its layers, anew as the text grows: a token that is computed later "
            "would not get those of its time"
        )
    if not getattr(config, "is_causal", True):
        raise LazyLLMError(f"{name} is configured with bidirectional attention: LazyLLM needs causal attention")
    if not getattr(decoder, "_supports_attention_backend", False):
        raise LazyLLMError(
            f"the attention of {name} does not go through transformers' attention interface: use a model whose does, "
            "such as Llama or Qwen"
        )
    # Two kinds that SDPA cannot compute are known: capped scores, and sinks.
    known = getattr(config, "attn_logit_softcapping", None) is not None or any(
        getattr(part, "sinks", None) is not None for part in anatomy.layers.modules()
    )
    if not decoder._supports_sdpa and not known:
        raise LazyLLMError(f"the attention of {name} is not plain softmax attention: LazyLLM cannot score it")
    _check_attention(decoder)


def _refuse_altered(name: str, anatomy: Anatomy, model: PreTrainedModel) -> None:
    """Refuse what was done to the model after it was built."""
    if any(_compiled(part) for part in (model, anatomy.decoder, *anatomy.layers)):
        raise LazyLLMError(COMPILED.format(name))


def _tensor_parallel(name: str, model: PreTrainedModel) -> ProcessGroup | None:
    """The processes among which a model's heads are split; every other way of splitting a model is refused."""
    config = getattr(model.config, "distributed_config", None)
    sizes = {kind: getattr(config, f"{kind}_size", None) or 1 for kind in ("pp", "dp", "fsdp", "ep")}
    sizes |= {kind: getattr(model, f"{kind}_size", None) or 1 for kind in ("tp", "fsdp")}
    mesh = getattr(model, "_device_mesh", None)
    if mesh is not None and sizes["tp"] > 1 and all(size == 1 for kind, size in sizes.items() if kind != "tp"):
        return mesh["tp"].get_group() if mesh.ndim > 1 else mesh.get_group()
    # Parameters that are split over processes know of the mesh of devices.
    if set(sizes.values()) != {1} or any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise LazyLLMError(
            f"{name} is split over several processes in a way that LazyLLM does not know: load the whole model with "
            "DistributedConfig(tp_size=...) alone, or in one process"
        )
    return None


def _compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or hasattr(module.forward, "_torchdynamo_orig_callable")


def runs_on(layer: nn.Module, given: torch.device) -> torch.device | int | str:
    """Where a layer runs: where its input is `given`, unless the model has a `device_map`, whose hooks move it."""
    device = getattr(getattr(layer, "_hf_hook", None), "execution_device", None)
    return given if device is None else device


def windows(config: PreTrainedConfig, num_layers: int) -> list[int | None]:
    """How many positions each layer's cache holds in the unmodified model; None where it holds all of them."""
    found = [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=config).layers]
    return (found + [None] * num_layers)[:num_layers]


def rope_switch(config: PreTrainedConfig) -> int | None:
    """Number of positions beyond which a model with LongRoPE changes its rotary tables and computes its cache anew."""
    for rope in _ropes(config, "longrope"):
        return rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
    return None


def rope_growth(config: PreTrainedConfig) -> int | None:
    """Number of positions beyond which dynamic scaling makes rotary tables for the longest sequence of a batch."""
    return config.max_position_embeddings if _ropes(config, "dynamic") else None


def _ropes(config: PreTrainedConfig, kind: str) -> list[dict[str, Any]]:
    """The rotary settings of a kind, of the model or of each type of its layers."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [part for part in (rope, *rope.values()) if isinstance(part, dict) and part.get("rope_type") == kind]
