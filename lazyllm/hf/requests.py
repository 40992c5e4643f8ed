"""What LazyLLM takes of `generate` and of a forward pass: ways to generate, inputs, and the outputs asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedConfig

from lazyllm.hf.refusals import refusal, refuse_if

_BEAMS = ("num_beams", "force_words_ids", "constraints")
_ASSISTED = ("assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens", "use_mtp")
# None, or what comes to the same.
_OWN_CACHE = (None, "dynamic", "hybrid")
_PER_TOKEN = ("output_attentions", "output_hidden_states", "output_router_logits")
# What a decoder may be given a tensor for: it uses these up before its first layer, or LayerArguments knows them.
_KNOWN = {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids", "cache_position"}
_KNOWN |= {"per_layer_inputs"}  # what Gemma 4 adds to each token in each layer
# Features of images for all tokens of the first layers, one tensor a layer, and which tokens they are for.
_DEEPSTACK = {"deepstack_visual_embeds", "visual_pos_masks"}


class Way(NamedTuple):
    """How `generate` was asked to go.

    Attributes:
        chunked: how many tokens, padding included, come in chunks: those of the prompts, or none.
        guided: whether a second generation, without a condition, guides it.
    """

    chunked: int
    guided: bool


def check_ways(given: dict[str, Any], defaults: GenerationConfig) -> Way:
    """Refuse a call of `generate` that branches, rolls back or replaces the cache, before it changes the model for it.

    `given` are the call's arguments, and `defaults` the model's own settings.
    """

    def setting(name: str) -> Any:
        config = getattr(given.get("generation_config"), name, None)
        return given[name] if name in given else getattr(defaults, name, None) if config is None else config

    cache = setting("cache_implementation")
    for name in _BEAMS:
        refuse_if(setting(name) not in (None, 1), "beams", name=name)
    for name in _ASSISTED:
        refuse_if(setting(name), "assisted", name=name)
    refuse_if(cache not in _OWN_CACHE, "cache_implementation", cache=cache)
    guided = setting("guidance_scale") not in (None, 1)
    if setting("prefill_chunk_size") is None:
        return Way(0, guided)
    prompts = [given.get(name) for name in ("attention_mask", "inputs", "input_ids", "inputs_embeds")]
    return Way(max((tensor.shape[1] for tensor in prompts if isinstance(tensor, torch.Tensor)), default=0), guided)


def given_tokens(kwargs: dict[str, Any]) -> Any:
    """A forward pass's input: its embeddings, or else its ids."""
    embedded = kwargs.get("inputs_embeds")
    return kwargs.get("input_ids") if embedded is None else embedded


def size(kwargs: dict[str, Any]) -> tuple[int, int]:
    """Number of sequences in a forward pass's input, and its tokens for each, padding included."""
    tokens = given_tokens(kwargs)
    refuse_if(not isinstance(tokens, torch.Tensor) or tokens.ndim < 2, "no_input")
    refuse_if(0 in tokens.shape[:2], "no_token")
    return tokens.shape[0], tokens.shape[1]


def check_logits(kwargs: dict[str, Any], every_token: bool) -> None:
    """Refuse a pass of the whole model that asks for a loss, or for logits that LazyLLM does not compute.

    With `every_token`, a pass that asks for the logits of all tokens is accepted and gets the newest token's alone.
    """
    wanted, new = kwargs.get("logits_to_keep", 0), size(kwargs)[1]
    number = isinstance(wanted, int) and wanted >= 0
    refuse_if(kwargs.get("labels") is not None, "loss")
    refuse_if(not number or (wanted > 1 and new > 1), "few_logits")
    refuse_if(number and wanted == 0 and (new > 1) and (not every_token), "every_logits")


def check_flags(kwargs: dict[str, Any], config: PreTrainedConfig) -> None:
    """Raise `LazyLLMError` if a call or a config asks for something of every token in every layer."""
    asked = [name for name in _PER_TOKEN if kwargs.get(name) or getattr(config, name, False)]
    refuse_if(asked, "every_layer", asked=", ".join(asked))


def check_arguments(kwargs: dict[str, Any], complete: int) -> None:
    """Raise `LazyLLMError` if a decoder's arguments leave no cache, or hold tensors that are not known.

    The outputs of the first `complete` layers are of all tokens.
    """
    refuse_if(kwargs.get("use_cache") is False, "no_cache")
    unknown = sorted(name for name, value in kwargs.items() if name not in _KNOWN | _DEEPSTACK and _holds_tensor(value))
    refuse_if(unknown, "decoder_tensors", unknown=", ".join(unknown))
    features = kwargs.get("deepstack_visual_embeds")
    if features is not None and (deep := len(features)) > complete:
        raise refusal("deepstack", deep=deep, deep_=deep - 1)


def check_rotary(seen: list[int], new: list[int], switch: int | None, growth: int | None) -> None:
    """Refuse a step that rotary tables of the unmodified model do not last for; see `ModelSetup`.

    `seen` and `new` are how many tokens each sequence has had, and has in the step.
    """
    if switch is None and growth is None:
        return
    totals = [before + count for before, count in zip(seen, new, strict=True)]
    refuse_if(growth is not None and len(totals) > 1 and (max(totals) > growth), "longest_rope", growth=growth)
    if switch is None:
        return
    refuse_if(
        any((0 < before <= switch < total for before, total in zip(seen, totals, strict=True))),
        "crossed_rope",
        switch=switch,
    )
    refuse_if(min(totals) <= switch < max(totals), "mixed_rope", switch=switch)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensor, value)))
