"""Which models are supported: finds their decoder layers, and refuses what LazyLLM cannot prune right."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lazyllm.hf.attention_interface import NAME
from lazyllm.hf.refusals import refuse_if

# Attention that sees every earlier token, or those in a window or chunk of true positions.
_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
# Layers that carry a state from token to token, past those that a stage leaves behind; and with them, none of both.
_STATEFUL = {"linear_attention", "conv", "mamba", "recurrent", "hybrid", "hybrid_sliding"}
_NEITHER = {"mlp", "moe"}
# Folders of `peft.tuners` whose modules tests prove to work token by token.
_PROVED = (
    "adalora adaption_prompt beft boft c3a deft delora fourierft frod glora gralora hira hra ia3 ln_tuning loha lokr "
    "lora miss oft osf peanut pvera randlora road shira supertuning tinylora trainable_tokens unilora vblora vera "
    "waveft"
)
ADAPTERS = frozenset(_PROVED.split())
_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")


@dataclass(frozen=True)
class Anatomy:
    """The module that runs the decoder layers of a model one after the other, and these layers."""

    decoder: PreTrainedModel
    layers: nn.ModuleList
    processes: ProcessGroup | None  # those among which heads are split; None means one process
    stateful: bool  # whether layers carry a state from token to token


def dissect(model: Any, newest_only: bool, for_good: bool) -> Anatomy:
    """Find the decoder of a Hugging Face model, with `newest_only` also of one without a language-modelling head.

    With `for_good`, no token that is left behind returns, so layers may carry a state from token to token.
    """
    compiled = getattr(model, "_orig_mod", None)
    refuse_if(isinstance(compiled, PreTrainedModel), "compiled", name=compiled)
    refuse_if(not isinstance(model, PreTrainedModel), "not_transformers", name=type(model).__name__)
    modules = modules_of(model)
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
    generates = model.can_generate()
    refuse_if(getattr(model.config, "is_encoder_decoder", False), "encoder_decoder", name=model)
    refuse_if(generates and not model._supports_default_dynamic_cache(), "own_cache", name=model)
    refuse_if(len(found) != 1, "stacks", name=model, what=f"{len(found)} stacks" if found else "no stack")
    decoder, layers, parts = found[0]
    refuse_if(not generates and decoder is not model, "other_outputs", name=model)
    refuse_if(not generates and not newest_only, "no_head", name=model)
    stateful = _refuse_layers(model, decoder, parts, for_good)
    check_attention(decoder)
    whole = any(
        part._compiled_call_impl is not None or hasattr(part.forward, "_torchdynamo_orig_callable")
        for part in (model, decoder, *layers)
    )
    refuse_if(whole, "compiled", name=model)
    return Anatomy(decoder, layers, _tensor_parallel(model, modules), stateful)


def modules_of(module: nn.Module) -> list[nn.Module]:
    """A module and all within it; `nn.Module.modules`, which names them as well, takes three times as long."""
    found = [module]
    for part in found:
        found += filter(None, part._modules.values())
    return list(dict.fromkeys(found))


def check_attention(decoder: Any) -> None:
    """Raise `LazyLLMError` if LazyLLM is enabled on a decoder, or cannot be."""
    implementation = decoder.config._attn_implementation
    known = "'sdpa' or 'flash_attention_2'" if decoder._supports_sdpa else "'eager'"
    refuse_if(implementation == NAME, "enabled")
    refuse_if(implementation not in _ATTENTION, "attention_kind", implementation=implementation, known=known)


def _layer_parts(stack: nn.ModuleList) -> list[nn.Module]:
    """All modules in a list of decoder layers; none unless each of these holds attention that knows its own depth."""
    parts = []
    for index, layer in enumerate(stack):
        own = modules_of(layer)
        if not any(vars(part).get("layer_idx") == index for part in own):
            return []
        parts += own
    return parts


def _refuse_layers(model: Any, decoder: Any, parts: list[nn.Module], for_good: bool) -> bool:
    """Raise `LazyLLMError` for layers that cannot be pruned between; gives whether some carry a state."""
    config = decoder.config
    kinds = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    stateful = sorted(kinds & _STATEFUL)
    refuse_if(stateful and not for_good, "stateful", name=model, stateful=", ".join(stateful))
    kinds -= _STATEFUL | _NEITHER if stateful else set()
    refuse_if(kinds, "merging", name=model, kinds=", ".join(sorted(kinds)))
    mixes = any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in parts)
    refuse_if(mixes and not stateful, "convolution", name=model)
    changing = any(vars(part).get("rope_type") in ("dynamic", "longrope") for part in parts)
    refuse_if(changing, "changing_rope", name=model)
    refuse_if(not getattr(config, "is_causal", True), "bidirectional", name=model)
    # Hybrids do not say so: of theirs, a layer that passes the interface by is found when it runs.
    interface = getattr(decoder, "_supports_attention_backend", False) or stateful
    refuse_if(not interface, "no_interface", name=model)
    # Two kinds that SDPA cannot compute are known: capped scores, and sinks.
    known = getattr(config, "attn_logit_softcapping", None) is not None
    known = known or any(part._parameters.get("sinks") is not None for part in parts)
    refuse_if(not decoder._supports_sdpa and not known, "not_softmax", name=model)
    refuse_if(getattr(config, "altup_num_inputs", None), "several_states", name=model)
    refuse_if(getattr(config, "num_kv_shared_layers", None), "shared_keys", name=model)
    return bool(stateful)


def _tensor_parallel(model: Any, modules: list[nn.Module]) -> ProcessGroup | None:
    """The processes among which a model's heads are split; every other way of splitting a model is refused."""
    config = getattr(model.config, "distributed_config", None)
    sizes = {kind: getattr(config, f"{kind}_size", None) or 1 for kind in ("pp", "dp", "fsdp", "ep")}
    sizes |= {kind: getattr(model, f"{kind}_size", None) or 1 for kind in ("tp", "fsdp")}
    mesh = getattr(model, "_device_mesh", None)
    if mesh is not None and sizes["tp"] > 1 and all(size == 1 for kind, size in sizes.items() if kind != "tp"):
        return mesh["tp"].get_group() if mesh.ndim > 1 else mesh.get_group()
    # Parameters that are split over processes know of the mesh of devices.
    split = any(hasattr(parameter, "device_mesh") for part in modules for parameter in part._parameters.values())
    refuse_if(split or set(sizes.values()) != {1}, "split", name=model)
    return None


def windows(config: PreTrainedConfig, num_layers: int) -> list[int | None]:
    """How many positions each layer's cache holds in the unmodified model; None where it holds all, 0 without one."""
    layers = DynamicCache(config=config).layers
    found = [getattr(layer, "sliding_window", None) if isinstance(layer, DynamicLayer) else 0 for layer in layers]
    return (found + [None] * num_layers)[:num_layers]


def rope_limits(config: PreTrainedConfig) -> tuple[int | None, int | None]:
    """Numbers of positions beyond which the model makes other rotary tables; None where it does not.

    Beyond the first, LongRoPE's, it computes its whole cache anew; beyond the second, that of dynamic scaling, they
    are those of the longest sequence of a batch.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    # The settings are the model's, or those of each type of its layers.
    kinds = {part.get("rope_type"): part for part in (rope, *rope.values()) if isinstance(part, dict)}
    original = "original_max_position_embeddings"
    switch = kinds["longrope"].get(original) or getattr(config, original, None) if "longrope" in kinds else None
    return switch, config.max_position_embeddings if "dynamic" in kinds else None


def check_parts(modules: Iterable[nn.Module]) -> None:
    """Raise `LazyLLMError` for adapters that are not proved, and for scales taken from several tokens together."""
    for part in modules:
        package, _, folder = type(part).__module__.partition("peft.tuners.")
        if folder and not package and not folder.startswith("_"):
            kinds = [type(variant).__name__ for variant in getattr(part, "lora_variant", {}).values()]
            unknown = [kind for kind in (*kinds, folder.split(".")[0]) if kind not in ADAPTERS and kind[:4] != "Dora"]
            refuse_if(unknown, "unproved_adapters", unknown=", ".join(unknown))
        for parameter in part._parameters.values():
            # torchao keeps how activations are quantised with the weight.
            settings = getattr(parameter, "act_quant_kwargs", None)
            by_tensor = settings is not None and type(getattr(settings, "granularity", None)).__name__ == "PerTensor"
            refuse_if(by_tensor and getattr(parameter, "act_quant_scale", None) is None, "one_scale")
