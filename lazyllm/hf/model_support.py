"""Find a model's decoder layers, and refuse models that are not supported."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lazyllm.core.errors import LazyLLMError
from lazyllm.hf import private
from lazyllm.hf.attention_interface import NAME

# Attention that sees every earlier token, or those in a window of true positions.
_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Layers that carry a state from token to token, so no pruned token can be revived; and others in the same models.
_STATEFUL = {"linear_attention", "conv", "mamba", "recurrent", "hybrid", "hybrid_sliding"}
_BESIDE_STATEFUL = {"mlp", "moe"}
# Folders of `peft.tuners` whose modules work token by token.
_ADAPTERS = {"lora", "trainable_tokens"}
_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")


@dataclass(frozen=True)
class ModelParts:
    """The parts of a model that LazyLLM works on."""

    decoder: PreTrainedModel  # the module that runs the decoder layers one after the other
    layers: nn.ModuleList
    windows: list[int | None]  # see `layer_windows`
    processes: ProcessGroup | None  # those among which the model's heads are split; None means one process
    is_stateful: bool  # whether layers carry a state from token to token


def rope_switch(config: PreTrainedConfig) -> int | None:
    """Return the number of positions beyond which a LongRoPE model uses other rotary tables; None for other models."""
    rope = getattr(config, "rope_parameters", None) or {}
    # The settings are the model's, or those of each type of its layers.
    for part in (rope, *rope.values()):
        if isinstance(part, dict) and part.get("rope_type") == "longrope":
            original = "original_max_position_embeddings"
            return part.get(original) or getattr(config, original, None)
    return None


def find_parts(model: Any, revive: bool) -> ModelParts:
    """Find the decoder of a Hugging Face language model, or refuse a model that is not supported.

    Without `revive`, layers may carry a state from token to token.
    """
    if not isinstance(model, PreTrainedModel):
        must = "pass lazyllm.enable a transformers PreTrainedModel that is not compiled"
        raise LazyLLMError(f"{type(model).__name__} is not a Hugging Face model: {must}")
    stacks = [
        (module, child)
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
        for child in module.children()
        if isinstance(child, nn.ModuleList) and _knows_indexes(child)
    ]
    if len(stacks) > 1:  # an image or audio encoder may be built alike
        stacks = [stack for stack in stacks if stack[0] is model.get_decoder()] or stacks
    number = f"{len(stacks)} stacks" if stacks else "no stack"
    problems = {
        "is an encoder-decoder: LazyLLM prunes decoder-only models": getattr(model.config, "is_encoder_decoder", False),
        "has no language-modelling head: load it with AutoModelForCausalLM": not model.can_generate(),
        "has a cache of its own kind": model.can_generate() and not private.supports_dynamic_cache(model),
        f"has {number} of decoder layers with a layer_idx: LazyLLM needs exactly one": len(stacks) != 1,
    }
    _refuse(model, problems)
    decoder, layers = stacks[0]
    problems = {
        "runs its decoder layers itself, without a module of their own": decoder is model,
        "is compiled: load it again": any(map(private.is_compiled, (model, decoder, *layers))),
    }
    _refuse(model, problems)
    processes, windows = _process_group(model), layer_windows(decoder.config, len(layers))
    is_stateful = _check_layers(model, decoder, list(layers.modules()), revive)
    check_attention(decoder)
    return ModelParts(decoder, layers, windows, processes, is_stateful)


def _refuse(model: nn.Module, problems: dict[str, Any]) -> None:
    """Raise `LazyLLMError` with the first of the problems that the model has."""
    for problem, is_there in problems.items():
        if is_there:
            raise LazyLLMError(f"{type(model).__name__} {problem}")


def check_attention(decoder: Any) -> None:
    """Raise `LazyLLMError` if LazyLLM is enabled on a decoder, or if its attention is not supported."""
    implementation = private.attention_implementation(decoder.config)
    if implementation == NAME:
        raise LazyLLMError("LazyLLM is already enabled on this model, or on its config object: leave that `with`")
    if implementation not in _ATTENTION:
        known = "'sdpa' or 'flash_attention_2'" if private.supports_sdpa(decoder) else "'eager'"
        raise LazyLLMError(f"attention {implementation!r} is not supported: load with attn_implementation={known}")


def _knows_indexes(stack: nn.ModuleList) -> bool:
    """Return whether each layer of a stack has attention with the layer's index as its `layer_idx`."""
    return len(stack) > 0 and all(
        any(vars(module).get("layer_idx") == index for module in layer.modules()) for index, layer in enumerate(stack)
    )


def _check_layers(model: Any, decoder: Any, modules: list[nn.Module], revive: bool) -> bool:
    """Raise `LazyLLMError` for layers that cannot be pruned between; return whether some carry a state."""
    config = decoder.config
    types = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    stateful = sorted(types & _STATEFUL)
    others = sorted(types - _STATEFUL - _BESIDE_STATEFUL if stateful else types)
    # Besides what SDPA computes, capped scores and attention sinks are supported.
    has_known_scores = (
        private.supports_sdpa(decoder)
        or getattr(config, "attn_logit_softcapping", None) is not None
        or any(getattr(module, "sinks", None) is not None for module in modules)
    )
    without = "so that no pruned token can be revived: ranking=lazyllm.AttentionRanking(revive=False)"
    convolves = any(isinstance(module, nn.Conv1d | nn.Conv2d) for module in modules)
    changing_rope = any(vars(module).get("rope_type") in ("dynamic", "longrope") for module in modules)
    # Hybrids do not declare it; a layer that bypasses the interface is refused when it runs.
    has_interface = stateful or private.supports_attention_interface(decoder)
    problems = {
        f"has {', '.join(stateful)} layers, which carry a state, {without}": stateful and revive,
        f"has {', '.join(others)} layers, which are not supported": others,
        "mixes neighbouring tokens by convolution in its layers": convolves and not stateful,
        "makes new rotary tables inside its layers as the text grows": changing_rope,
        "is configured with bidirectional attention": not getattr(config, "is_causal", True),
        "does not attend through transformers' attention interface": not has_interface,
        "attends by something other than plain softmax attention": not has_known_scores,
        "has layers that share keys and values": getattr(config, "num_kv_shared_layers", None),
    }
    _refuse(model, problems)
    return bool(stateful)


def _process_group(model: Any) -> ProcessGroup | None:
    """Return the processes among which a model's heads are split, or None; refuse other ways of splitting it."""
    config, tp_size = getattr(model.config, "distributed_config", None), getattr(model, "tp_size", None) or 1
    sizes = [getattr(config, f"{kind}_size", None) or 1 for kind in ("pp", "dp", "fsdp", "ep")]
    is_split = max([*sizes, getattr(model, "fsdp_size", None) or 1]) > 1
    if (mesh := private.device_mesh(model)) is not None and tp_size > 1 and not is_split:
        return mesh["tp"].get_group() if mesh.ndim > 1 else mesh.get_group()
    # Parameters that are split over processes have a `device_mesh`.
    if is_split or tp_size > 1 or any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        what = "is split over several processes in a way that is not supported"
        raise LazyLLMError(f"{type(model).__name__} {what}: use only DistributedConfig(tp_size=...)")
    return None


def layer_windows(config: PreTrainedConfig, num_layers: int) -> list[int | None]:
    """Return how many positions each layer's cache holds in the unmodified model; None means all, 0 no cache."""
    layers = DynamicCache(config=config).layers
    windows = [getattr(layer, "sliding_window", None) if isinstance(layer, DynamicLayer) else 0 for layer in layers]
    return (windows + [None] * num_layers)[:num_layers]


def check_adapters(modules: Iterable[nn.Module]) -> None:
    """Raise `LazyLLMError` for adapters of PEFT other than LoRA and DoRA, which may mix tokens."""
    for module in modules:
        package, _, folder = type(module).__module__.partition("peft.tuners.")
        if folder and not package and not folder.startswith("_"):
            kinds = [*private.lora_variants(module), folder.split(".")[0]]
            if unknown := [kind for kind in kinds if kind not in _ADAPTERS and not kind.startswith("Dora")]:
                what = f"adapters of PEFT's {', '.join(unknown)} may mix tokens"
                raise LazyLLMError(f"{what}: use merge_and_unload(), or LoRA")
