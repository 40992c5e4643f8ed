"""Finds the decoder layers of a model, and refuses models that LazyLLM cannot prune right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel

from lazyllm.core.errors import LazyLLMError, refuse
from lazyllm.hf.adapters import check_parts
from lazyllm.hf.attention_interface import NAME

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


@dataclass(frozen=True)
class Anatomy:
    """The module that runs the decoder layers of a model one after the other, and these layers.

    Attributes:
        processes: those among which the model's heads are split; None means one process.
        with_rope_deltas: the modules that keep where text goes on after images.
    """

    decoder: PreTrainedModel
    layers: nn.ModuleList
    processes: ProcessGroup | None
    with_rope_deltas: list[nn.Module]


def dissect(model: nn.Module, newest_only: bool = False) -> Anatomy:
    """Find the decoder of a Hugging Face model, with `newest_only` also of one without a language-modelling head.

    Raises:
        LazyLLMError: not a decoder-only transformer whose attention goes through transformers' attention
            interface, or one with parts that pruning would break.
    """
    name = type(model).__name__
    compiled = getattr(model, "_orig_mod", None)
    refuse(
        [
            (isinstance(compiled, PreTrainedModel), _compiled(type(compiled).__name__)),
            (
                not isinstance(model, PreTrainedModel),
                f"{name} is not a Hugging Face model: give lazyllm.enable a transformers PreTrainedModel",
            ),
        ]
    )
    modules = list(model.modules())
    found = [
        (module, child, parts)
        for module in modules
        if isinstance(module, PreTrainedModel)
        for child in module.children()
        if isinstance(child, nn.ModuleList) and (parts := _layer_parts(child))
    ]
    if len(found) > 1:
        # What sees or hears may be built alike.
        found = [part for part in found if part[0] is model.get_decoder()] or found
    what = "no stack" if not found else f"{len(found)} stacks"
    generates = model.can_generate()
    refuse(
        [
            (
                getattr(model.config, "is_encoder_decoder", False),
                f"{name} is an encoder-decoder: LazyLLM prunes decoder-only models, such as Llama or Qwen",
            ),
            (
                generates and not isinstance(model, GenerationMixin),
                f"{name} does not generate token by token, which LazyLLM is for",
            ),
            (
                len(found) != 1,
                f"{name} has {what} of decoder layers with attention in every layer: LazyLLM needs a decoder-only "
                "language model with exactly one",
            ),
            (
                not generates and not any(part[0] is model for part in found),
                f"{name} gives other outputs than a language model's, of hidden states that LazyLLM does not compute: "
                "give lazyllm.enable the language model, or the decoder alone with newest_only=True",
            ),
            (
                not generates and not newest_only,
                f"{name} has no language-modelling head, and its hidden states are of every token: LazyLLM computes "
                "the newest token's alone, which newest_only=True accepts",
            ),
        ]
    )
    decoder, layers, parts = found[0]
    _refuse_layers(name, decoder, parts)
    check_attention(decoder)
    check_parts(modules)
    whole = any(_is_compiled(part) for part in (model, decoder, *layers))
    refuse([(whole, _compiled(name))])
    return Anatomy(
        decoder, layers, _tensor_parallel(name, model, modules), [part for part in modules if "rope_deltas" in vars(part)]
    )


def check_attention(decoder: PreTrainedModel) -> None:
    """Raise `LazyLLMError` if LazyLLM is enabled on a decoder, or cannot be."""
    implementation = decoder.config._attn_implementation
    known = "'sdpa' or 'flash_attention_2'" if decoder._supports_sdpa else "'eager'"
    refuse(
        [
            (
                implementation == NAME,
                "LazyLLM is already enabled on this model, or on one with the same config object: leave the first "
                "`with` before the next",
            ),
            (
                implementation not in _ATTENTION,
                f"attention implementation {implementation!r} is not supported: load the model with "
                f"attn_implementation={known}",
            ),
        ]
    )


def _layer_parts(stack: nn.ModuleList) -> list[nn.Module]:
    """All modules in a list of decoder layers; none unless each of these holds attention that knows its own depth."""
    parts = []
    for index, layer in enumerate(stack):
        own = list(layer.modules())
        if not any(vars(part).get("layer_idx") == index for part in own):
            return []
        parts += own
    return parts


def _refuse_layers(name: str, decoder: PreTrainedModel, parts: list[nn.Module]) -> None:
    config = decoder.config
    kinds = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    stateful = sorted(kinds & _STATEFUL)
    # Two kinds that SDPA cannot compute are known: capped scores, and sinks.
    known = getattr(config, "attn_logit_softcapping", None) is not None or any(
        part._parameters.get("sinks") is not None for part in parts
    )
    refuse(
        [
            (
                stateful,
                f"{name} has {', '.join(stateful)} layers, which carry a state over all tokens in order, and a token "
                "that comes back later cannot enter it: shorten the prompt before the model instead",
            ),
            (
                kinds,
                f"{name} has {', '.join(sorted(kinds))} layers, which choose or merge tokens themselves: LazyLLM "
                "prunes softmax attention over all of them",
            ),
            *(
                (
                    getattr(config, setting, None),
                    f"{name} {what} ({setting}), which LazyLLM does not know how to prune",
                )
                for setting, what in _BESIDES.items()
            ),
            (
                any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in parts),
                f"{name} mixes neighbouring tokens by convolution in its layers: pruning would change what they see",
            ),
            (
                any(vars(part).get("rope_type") in _CHANGING for part in parts),
                f"{name} makes its rotary tables inside its layers, anew as the text grows: a token that is computed "
                "later would not get those of its time",
            ),
            (
                not getattr(config, "is_causal", True),
                f"{name} is configured with bidirectional attention: LazyLLM needs causal attention",
            ),
            (
                not getattr(decoder, "_supports_attention_backend", False),
                f"the attention of {name} does not go through transformers' attention interface: use a model whose "
                "does, such as Llama or Qwen",
            ),
            (
                not decoder._supports_sdpa and not known,
                f"the attention of {name} is not plain softmax attention: LazyLLM cannot score it",
            ),
        ]
    )


def _tensor_parallel(name: str, model: PreTrainedModel, modules: list[nn.Module]) -> ProcessGroup | None:
    """The processes among which a model's heads are split; every other way of splitting a model is refused."""
    config = getattr(model.config, "distributed_config", None)
    sizes = {kind: getattr(config, f"{kind}_size", None) or 1 for kind in ("pp", "dp", "fsdp", "ep")}
    sizes |= {kind: getattr(model, f"{kind}_size", None) or 1 for kind in ("tp", "fsdp")}
    mesh = getattr(model, "_device_mesh", None)
    if mesh is not None and sizes["tp"] > 1 and all(size == 1 for kind, size in sizes.items() if kind != "tp"):
        return mesh["tp"].get_group() if mesh.ndim > 1 else mesh.get_group()
    # Parameters that are split over processes know of the mesh of devices.
    parameters = (parameter for part in modules for parameter in part._parameters.values())
    if set(sizes.values()) != {1} or any(hasattr(parameter, "device_mesh") for parameter in parameters):
        raise LazyLLMError(
            f"{name} is split over several processes in a way that LazyLLM does not know: load the whole model with "
            "DistributedConfig(tp_size=...) alone, or in one process"
        )
    return None


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or hasattr(module.forward, "_torchdynamo_orig_callable")


def _compiled(name: str) -> str:
    return f"{name} is compiled, which would pass LazyLLM by: load it anew and leave out torch.compile"


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
