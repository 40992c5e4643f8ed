"""What LazyLLM takes of `generate` and of a forward pass: ways to generate, inputs, and the outputs asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedConfig

from lazyllm.core.errors import LazyLLMError, refuse

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
    refuse(
        [
            *(
                (
                    setting(name) not in (None, 1),
                    f"beam search ({name}) is not supported: LazyLLM's cache does not branch, so leave it unset, and "
                    "for several answers use do_sample=True with num_return_sequences",
                )
                for name in _BEAMS
            ),
            *(
                (
                    setting(name),
                    f"assisted decoding ({name}) is not supported: it needs logits of several tokens at once, and a "
                    "cache that takes tokens back, so leave it unset",
                )
                for name in _ASSISTED
            ),
            (
                cache not in _OWN_CACHE,
                f"cache_implementation={cache!r} is not supported: LazyLLM keeps a cache of its own, so leave it unset",
            ),
        ]
    )
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
    if not isinstance(tokens, torch.Tensor) or tokens.ndim < 2:
        raise LazyLLMError("the model was called without input_ids or inputs_embeds of shape (sequences, tokens)")
    if 0 in tokens.shape[:2]:
        raise LazyLLMError(
            "the pass has no token: a prompt begins with at least one, such as BOS, and a conversation goes on with "
            "all its tokens so far and new ones behind them"
        )
    return tokens.shape[0], tokens.shape[1]


def check_logits(kwargs: dict[str, Any], every_token: bool) -> None:
    """Refuse a pass of the whole model that asks for a loss, or for logits that LazyLLM does not compute.

    With `every_token`, a pass that asks for the logits of all tokens is accepted and gets the newest token's alone.
    """
    wanted, new = kwargs.get("logits_to_keep", 0), size(kwargs)[1]
    number = isinstance(wanted, int) and wanted >= 0
    refuse(
        [
            (
                kwargs.get("labels") is not None,
                "a loss was asked for, of logits of every token, of which LazyLLM computes the newest token's alone: "
                "leave out labels, and ask lazyllm.log_likelihood for the likelihood of a text",
            ),
            (
                not number or (wanted > 1 and new > 1),
                "logits of more than the newest token were asked for, and LazyLLM computes the newest token's alone: "
                "pass logits_to_keep=1, or ask lazyllm.log_likelihood for those of an answer",
            ),
            (
                number and wanted == 0 and new > 1 and not every_token,
                "logits of every token were asked for, of which LazyLLM computes the newest token's alone: pass "
                "logits_to_keep=1, accept that with newest_only=True, or score a text with lazyllm.log_likelihood",
            ),
        ]
    )


def check_flags(kwargs: dict[str, Any], config: PreTrainedConfig) -> None:
    """Raise `LazyLLMError` if a call or a config asks for something of every token in every layer."""
    asked = [name for name in _PER_TOKEN if kwargs.get(name) or getattr(config, name, False)]
    if asked:
        raise LazyLLMError(
            f"{', '.join(asked)}: these are of every token in every layer, and LazyLLM does not compute them: leave "
            "them out; record_positions=True tells which tokens each layer computes"
        )


def check_arguments(kwargs: dict[str, Any], complete: int) -> None:
    """Raise `LazyLLMError` if a decoder's arguments leave no cache, or hold tensors that are not known.

    The outputs of the first `complete` layers are of all tokens.
    """
    if kwargs.get("use_cache") is False:
        raise LazyLLMError("use_cache=False computes everything anew at each step: LazyLLM needs use_cache=True")
    unknown = sorted(name for name, value in kwargs.items() if name not in _KNOWN | _DEEPSTACK and _holds_tensor(value))
    if unknown:
        raise LazyLLMError(
            f"the decoder takes {', '.join(unknown)}, as for images, which LazyLLM does not know how to prune: "
            "it prunes text"
        )
    features = kwargs.get("deepstack_visual_embeds")
    if features is not None and (deep := len(features)) > complete:
        raise LazyLLMError(
            f"the model adds features of images to all tokens after each of its first {deep} layers: prune after layer "
            f"{deep - 1} or later"
        )


def check_rotary(seen: list[int], new: list[int], switch: int | None, growth: int | None) -> None:
    """Refuse a step that rotary tables of the unmodified model do not last for; see `ModelSetup`.

    `seen` and `new` are how many tokens each sequence has had, and has in the step.
    """
    if switch is None and growth is None:
        return
    totals = [before + count for before, count in zip(seen, new, strict=True)]
    if growth is not None and len(totals) > 1 and max(totals) > growth:
        raise LazyLLMError(
            f"beyond {growth} positions this model's rotary tables depend on the longest sequence of a batch: generate "
            "one sequence at a time"
        )
    if switch is None:
        return
    if any(0 < before <= switch < total for before, total in zip(seen, totals, strict=True)):
        raise LazyLLMError(
            f"the generation crosses {switch} positions, where this model's rotary tables change and all of "
            "its cache with them: use a longer prompt, or fewer new tokens"
        )
    if min(totals) <= switch < max(totals):
        raise LazyLLMError(
            f"some sequences are longer than {switch} tokens, where this model's rotary tables change, and some are "
            "not: generate them apart"
        )


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensor, value)))
