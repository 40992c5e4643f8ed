"""Read and check the arguments of `generate` and of forward passes: inputs, ways to generate, outputs asked for."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.generation import GenerationMode

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.ranking import Ranking
from lazyllm.core.schedule import PruningSchedule, nearest, rankable
from lazyllm.hf.private import CACHE, OLD_CACHE

_EVERY_LAYER = ("output_attentions", "output_hidden_states", "output_router_logits")
# Tensors that a decoder uses only before its first layer, or that `LayerArguments` selects.
_KNOWN_TENSORS = {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids", "cache_position"}
_KNOWN_TENSORS |= {"per_layer_inputs"}  # Gemma 4's addition to each token in each layer
PROMPT_LEARNING = "PEFT's prompt learning puts virtual tokens before the prompt, which is not supported: leave it out"
TRAINING = "the model is in training mode: call model.eval() first"


def arguments_by_name(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call of `method` by their names, the cache as `private.CACHE`."""
    named = {**dict(zip(inspect.signature(method).parameters, args, strict=False)), **kwargs} if args else kwargs
    return {CACHE if name == OLD_CACHE else name: value for name, value in named.items()}


def check_mode(mode: GenerationMode, config: GenerationConfig) -> None:
    """Refuse a call of `generate` other than greedy search or sampling with a cache that grows."""
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        instead = "use greedy search or sampling, with one beam and no assistant, early exit or prompt lookup"
        raise LazyLLMError(f"{mode.value.replace('_', ' ')} is not supported: {instead}")
    if getattr(config, "schedule", None) is not None or getattr(config, "protect", None) is not None:
        raise LazyLLMError("schedule and protect in a generation_config are not read: pass them to generate itself")
    # transformers ignores "hybrid", which older models are saved with.
    if config.cache_implementation not in (None, "dynamic", "hybrid"):
        raise LazyLLMError(f"cache_implementation={config.cache_implementation!r} is not supported: leave it out")


def prompt_shape(arguments: dict[str, Any]) -> tuple[int, ...]:
    """Return (sequences, tokens) of a call of `generate`, padding and the tokens of earlier turns included."""
    inputs = [arguments.get(name) for name in ("attention_mask", "inputs", "input_ids", "inputs_embeds")]
    shapes = [tuple(tensor.shape[:2]) for tensor in inputs if isinstance(tensor, torch.Tensor)]
    return max(shapes, key=lambda shape: shape[1], default=(0, 0))


def read_schedule(schedule: Any, windows: list[int | None], ranking: Ranking) -> PruningSchedule:
    """Return a schedule, given in any form, for layers with these windows; refuse what the ranking cannot do."""
    full = rankable(windows)
    if isinstance(schedule, str):
        schedule = PruningSchedule.parse(schedule, len(windows), full)
    schedule = schedule if isinstance(schedule, PruningSchedule) else PruningSchedule(schedule)
    schedule.check(len(windows))
    for layer, _ in schedule.pruning:
        if windows[layer] == 0:
            instead = f"put the stage after {nearest(full, layer)}" if full else "no other has full attention"
            raise LazyLLMError(f"no stage can follow layer {layer}, which has no attention: {instead}")
    if ranking.single_stage and len(schedule.stages) > 1:
        raise LazyLLMError(f"{type(ranking).__name__} prunes at one stage, not at those of {schedule.spec!r}")
    return schedule


def read_protected(protect: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return which tokens of prompts of this shape are protected, bool (batch, tokens), on the CPU; None means none."""
    if protect is None:
        return None
    protected = torch.atleast_2d(torch.as_tensor(protect))
    if protected.shape != shape or protected.dtype != torch.bool:
        raise LazyLLMError(f"protect must be a mask of all tokens so far, bool {shape}, True where they are kept")
    return protected.cpu()


def read_ids(model: PreTrainedModel, name: str, ids: Any) -> torch.Tensor:
    """Return the token ids of one text, (1, n), on the model's device; refuse a model in training mode."""
    if model.training:
        raise LazyLLMError(TRAINING)
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise LazyLLMError(PROMPT_LEARNING)
    tensor = torch.atleast_2d(torch.as_tensor(ids))
    if tensor.ndim != 2 or len(tensor) != 1 or not tensor.numel():
        raise LazyLLMError(f"{name} must be token ids of one text, at least one, such as [5, 6], not {str(ids)[:40]!r}")
    # With offloaded weights, hooks move the ids to the right device.
    return tensor.cpu() if model.device.type == "meta" else tensor.to(model.device)


def input_tokens(arguments: dict[str, Any]) -> torch.Tensor:
    """Return a forward pass's embeddings, or else its ids, (sequences, tokens, ...), padding included."""
    embeddings = arguments.get("inputs_embeds")
    tokens = arguments.get("input_ids") if embeddings is None else embeddings
    if not isinstance(tokens, torch.Tensor) or tokens.ndim < 2 or 0 in tokens.shape[:2]:
        raise LazyLLMError("a pass needs input_ids or inputs_embeds, (sequences, tokens, ...), with at least one token")
    return tokens


def check_logits(arguments: dict[str, Any]) -> None:
    """Refuse a pass that asks for a loss or other logits than the newest's."""
    keep, width = arguments.get("logits_to_keep", 0), input_tokens(arguments).shape[1]
    if arguments.get("labels") is not None:
        raise LazyLLMError("a loss was asked for: leave out labels, or use lazyllm.log_likelihoods")
    if not isinstance(keep, int) or not (keep == 1 or (keep >= 0 and width == 1)):
        instead = "pass logits_to_keep=1, or use lazyllm.log_likelihoods"
        raise LazyLLMError(f"LazyLLM computes only the newest token's logits, and others were asked for: {instead}")


def check_outputs(arguments: dict[str, Any], config: PreTrainedConfig) -> None:
    """Refuse a pass that asks, in its arguments or its config, for an output of every token in every layer."""
    names = [name for name in _EVERY_LAYER if arguments.get(name) or getattr(config, name, False)]
    if names:
        raise LazyLLMError(f"{', '.join(names)}: LazyLLM does not compute every token in every layer: leave them out")


def check_inputs(arguments: dict[str, Any]) -> None:
    """Refuse a pass of the decoder without a cache, or with tensors whose meaning is unknown."""
    if arguments.get("use_cache") is False:
        raise LazyLLMError("use_cache=False computes all tokens again in each step: LazyLLM needs use_cache=True")
    names = {name for name, value in arguments.items() if isinstance(value, torch.Tensor | list | tuple | dict)}
    unknown = sorted(names - _KNOWN_TENSORS)
    if unknown:
        raise LazyLLMError(f"the decoder takes {', '.join(unknown)}, whose meaning is unknown: this is not supported")
