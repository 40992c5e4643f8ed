"""Read and check the arguments of `generate` and of forward passes: inputs, ways to generate, outputs asked for."""

import copy
import inspect
import operator
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
_PROTECT = "protect must be a mask of the prompts' tokens, bool {shape}, or spans of one prompt, such as [(0, 40)]"
PROMPT_LEARNING = "PEFT's prompt learning puts virtual tokens before the prompt, which is not supported: leave it out"
TRAINING = "the model is in training mode: call model.eval() first"


def arguments_by_name(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call of `method` by their names, the cache as `private.CACHE`."""
    named = {**dict(zip(inspect.signature(method).parameters, args, strict=False)), **kwargs} if args else kwargs
    return {CACHE if name == OLD_CACHE else name: value for name, value in named.items()}


def read_setting(name: str, arguments: dict[str, Any], defaults: Any = None) -> Any:
    """Return a setting of `generate` from its arguments, else its `generation_config`, else the `defaults`."""
    if name in arguments:
        return arguments[name]
    setting = getattr(arguments.get("generation_config"), name, None)
    return getattr(defaults, name, None) if setting is None else setting


def check_mode(arguments: dict[str, Any], defaults: GenerationConfig) -> None:
    """Refuse a call of `generate` other than greedy search or sampling with a cache that grows.

    For the others, transformers may change the model or its config, and not change it back if a pass is refused.
    """
    config = copy.copy(defaults)
    vars(config).update({name: read_setting(name, arguments, defaults) for name in vars(config)})
    mode = config.get_generation_mode(arguments.get("assistant_model"))
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        instead = "use greedy search or sampling, with one beam and no assistant, early exit or prompt lookup"
        raise LazyLLMError(f"{mode.value.replace('_', ' ')} is not supported: {instead}")
    # transformers ignores "hybrid", which older models are saved with.
    if config.cache_implementation not in (None, "dynamic", "hybrid"):
        raise LazyLLMError(f"cache_implementation={config.cache_implementation!r} is not supported: leave it out")


def count_prompt_tokens(arguments: dict[str, Any]) -> int:
    """Return how many tokens the prompts of a call of `generate` have, padding and those of earlier turns included."""
    inputs = [arguments.get(name) for name in ("attention_mask", "inputs", "input_ids", "inputs_embeds")]
    return max((tensor.shape[1] for tensor in inputs if isinstance(tensor, torch.Tensor)), default=0)


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


def read_protected(protect: Any, ids: Any, mask: Any = None) -> torch.Tensor | None:
    """Return which tokens of the prompts are protected, bool (batch, tokens), on the CPU; None means none.

    Args:
        protect: a mask of the prompts, bool (batch, tokens), or of one prompt, bool (tokens,); spans (start, end) of
            one prompt, each with a token of it; or a function of a prompt's ids that returns a mask or spans.
        ids: the prompts, int64 (batch, tokens).
        mask: the attention mask, which marks padding if it has the shape of `ids`.
    """
    if protect is None:
        return None
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        raise LazyLLMError("protect needs the prompts as ids, input_ids of shape (sequences, tokens)")
    shown = torch.ones(ids.shape, dtype=torch.bool, device="cpu")
    if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
        shown = mask.bool().cpu()
    if callable(protect):
        masks = []
        for prompt, prompt_mask in zip(ids.split(1), shown.split(1), strict=True):
            protected = protect(prompt[0])
            masks.append(read_protected([] if protected is None else protected, prompt, prompt_mask))
        return torch.cat(masks)
    protected = protect if isinstance(protect, torch.Tensor) else _mask_of_spans(protect, shown[0])
    protected = protected[None] if protected.ndim == 1 else protected
    if protected.shape != ids.shape or protected.dtype != torch.bool:
        raise LazyLLMError(_PROTECT.format(shape=tuple(ids.shape)))
    return protected.cpu()


def _mask_of_spans(spans: Any, shown: torch.Tensor) -> torch.Tensor:
    """Return which tokens of a prompt lie in spans, bool (tokens,), given which are not padding, bool (tokens,)."""
    protected = torch.zeros_like(shown)
    try:
        pairs = [(operator.index(start), operator.index(end)) for start, end in spans]
    except (TypeError, ValueError):  # not pairs of integers
        raise LazyLLMError(_PROTECT.format(shape=(1, len(shown)))) from None
    for start, end in pairs:
        if not (0 <= start < end and shown[start:end].any()):
            prompt = f"the prompt's tokens, {int((~shown).sum())} to {len(shown) - 1}, padding counted before them"
            raise LazyLLMError(f"protect has the span {(start, end)}, which has none of {prompt}")
        protected[start:end] = True
    return protected


def read_ids(model: PreTrainedModel, name: str, ids: Any) -> torch.Tensor:
    """Return the token ids of one text, int64 (1, n), on the model's device; refuse a model in training mode."""
    if model.training:
        raise LazyLLMError(TRAINING)
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise LazyLLMError(PROMPT_LEARNING)
    try:
        tensor = torch.atleast_2d(torch.as_tensor(ids))
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.empty(0)
    if tensor.ndim != 2 or len(tensor) != 1 or not tensor.numel() or tensor.dtype != torch.int64:
        must = "token ids of one text, at least one: a list such as [5, 6], or int64 of shape (n,) or (1, n)"
        raise LazyLLMError(f"{name} must be {must}, not {str(ids)[:40]!r}")
    largest = model.config.get_text_config().vocab_size - 1
    if not 0 <= int(tensor.min()) <= int(tensor.max()) <= largest:
        raise LazyLLMError(f"{name} must be ids of the model's vocabulary, 0 to {largest}")
    # With offloaded weights, hooks move the ids to the right device.
    return tensor.cpu() if model.device.type == "meta" else tensor.to(model.device)


def input_tokens(arguments: dict[str, Any]) -> torch.Tensor:
    """Return a forward pass's embeddings, or else its ids, (sequences, tokens, ...), padding included."""
    embeddings = arguments.get("inputs_embeds")
    tokens = arguments.get("input_ids") if embeddings is None else embeddings
    if not isinstance(tokens, torch.Tensor) or tokens.ndim < 2 or 0 in tokens.shape[:2]:
        raise LazyLLMError("a pass needs input_ids or inputs_embeds, (sequences, tokens, ...), with at least one token")
    return tokens


def check_logits(arguments: dict[str, Any], accept_every: bool) -> None:
    """Refuse a pass that asks for a loss or other logits than the newest's; with `accept_every` it may ask for all."""
    keep, width = arguments.get("logits_to_keep", 0), input_tokens(arguments).shape[1]
    if arguments.get("labels") is not None:
        raise LazyLLMError("a loss was asked for: leave out labels, or use lazyllm.log_likelihoods")
    if not isinstance(keep, int) or not (keep == 1 or (keep >= 0 and width == 1) or (keep == 0 and accept_every)):
        instead = "pass logits_to_keep=1, enable with newest_only=True, or use lazyllm.log_likelihoods"
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
