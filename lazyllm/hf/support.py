"""Finds the decoder layers of a model, and refuses models that LazyLLM cannot prune right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel

from lazyllm.hf.adapters import check_parts
from lazyllm.hf.attention_interface import NAME
from lazyllm.hf.refusals import refuse_if

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
    refuse_if(isinstance(compiled, PreTrainedModel), "compiled", name=type(compiled).__name__)
    refuse_if(not isinstance(model, PreTrainedModel), "not_transformers", name=name)
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
    refuse_if(getattr(model.config, "is_encoder_decoder", False), "encoder_decoder", name=name)
    refuse_if(generates and not isinstance(model, GenerationMixin), "no_generation", name=name)
    refuse_if(len(found) != 1, "stacks", name=name, what=what)
    refuse_if(not generates and not any(part[0] is model for part in found), "other_outputs", name=name)
    refuse_if(not generates and not newest_only, "no_head", name=name)
    decoder, layers, parts = found[0]
    _refuse_layers(name, decoder, parts)
    check_attention(decoder)
    check_parts(modules)
    whole = any(_is_compiled(part) for part in (model, decoder, *layers))
    refuse_if(whole, "compiled", name=name)
    return Anatomy(
        decoder,
        layers,
        _tensor_parallel(name, model, modules),
        [part for part in modules if "rope_deltas" in vars(part)],
    )


def check_attention(decoder: PreTrainedModel) -> None:
    """Raise `LazyLLMError` if LazyLLM is enabled on a decoder, or cannot be."""
    implementation = decoder.config._attn_implementation
    known = "'sdpa' or 'flash_attention_2'" if decoder._supports_sdpa else "'eager'"
    refuse_if(implementation == NAME, "enabled")
    refuse_if(implementation not in _ATTENTION, "attention_kind", implementation=implementation, known=known)


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
    refuse_if(stateful, "stateful", name=name, stateful=", ".join(stateful))
    refuse_if(kinds, "merging", name=name, kinds=", ".join(sorted(kinds)))
    refuse_if(any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in parts), "convolution", name=name)
    refuse_if(any(vars(part).get("rope_type") in _CHANGING for part in parts), "changing_rope", name=name)
    refuse_if(not getattr(config, "is_causal", True), "bidirectional", name=name)
    refuse_if(not getattr(decoder, "_supports_attention_backend", False), "no_interface", name=name)
    refuse_if(not decoder._supports_sdpa and not known, "not_softmax", name=name)
    for setting, what in _BESIDES.items():
        refuse_if(getattr(config, setting, None), "besides", name=name, what=what, setting=setting)


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
    refuse_if(
        set(sizes.values()) != {1} or any(hasattr(parameter, "device_mesh") for parameter in parameters),
        "split",
        name=name,
    )
    return None


def _is_compiled(module: nn.Module) -> bool:
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
