"""What LazyLLM takes of a forward pass: its input, and the outputs it is asked for."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig

from lazyllm.errors import LazyLLMError
from lazyllm.tokens import TokenCache

_PER_TOKEN = ("output_attentions", "output_hidden_states", "output_router_logits")
# What a decoder may be given a tensor for: it uses these up before its first layer, or LayerInputs knows them.
_KNOWN = {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids", "cache_position"}


def count_new(kwargs: dict[str, Any]) -> int:
    """Number of tokens in a forward pass's input, which is of one sequence."""
    tokens = kwargs.get("inputs_embeds")
    if tokens is None:
        tokens = kwargs.get("input_ids")
    if not isinstance(tokens, torch.Tensor) or tokens.ndim < 2 or tokens.shape[1] < 1:
        raise LazyLLMError("the model was called without input_ids or inputs_embeds of shape (1, tokens)")
    if tokens.shape[0] != 1:
        raise LazyLLMError(
            f"{tokens.shape[0]} sequences at once: LazyLLM generates one sequence at a time, without beams or "
            "num_return_sequences"
        )
    return tokens.shape[1]


def check_logits(kwargs: dict[str, Any], every_token: bool) -> None:
    """Refuse a pass of the whole model that asks for a loss, or for logits that LazyLLM does not compute.

    With `every_token`, a pass that asks for the logits of all tokens is accepted and gets the newest token's alone.
    """
    wanted, new = kwargs.get("logits_to_keep", 0), count_new(kwargs)
    number = isinstance(wanted, int) and wanted >= 0
    if not number or (wanted > 1 and new > 1) or kwargs.get("labels") is not None:
        raise LazyLLMError(
            "logits of more than the newest token were asked for, as assisted decoding and losses need: LazyLLM "
            "computes the newest token's alone, logits_to_keep=1"
        )
    if wanted == 0 and new > 1 and not every_token:
        raise LazyLLMError(
            "logits of every token were asked for, of which LazyLLM computes the newest token's alone: pass "
            "logits_to_keep=1, or accept that with lazyllm.enable(..., newest_only=True)"
        )


def check_flags(kwargs: dict[str, Any], config: PreTrainedConfig) -> None:
    """Raise `LazyLLMError` if a call or a config asks for something of every token in every layer."""
    asked = [name for name in _PER_TOKEN if kwargs.get(name) or getattr(config, name, False)]
    if asked:
        raise LazyLLMError(
            f"{', '.join(asked)}: these are of every token in every layer, and LazyLLM does not compute them; "
            "record_positions=True tells what it does"
        )


def check_arguments(kwargs: dict[str, Any]) -> None:
    """Raise `LazyLLMError` if a decoder's arguments leave no cache, or hold tensors that are not known."""
    if kwargs.get("use_cache") is False:
        raise LazyLLMError("use_cache=False recomputes everything at each step: LazyLLM needs use_cache=True")
    unknown = sorted(name for name, value in kwargs.items() if name not in _KNOWN and _holds_tensor(value))
    if unknown:
        raise LazyLLMError(
            f"the decoder takes {', '.join(unknown)}, as for images, which LazyLLM does not know how to prune: "
            "it prunes text"
        )


def check_step(tokens: TokenCache, new: int, rope_switch: int | None) -> None:
    """Refuse several tokens after prefilling, and a step across `rope_switch`, see `generation.Setup`."""
    if tokens.prefilling:
        return
    if new != 1:
        raise LazyLLMError(
            f"{new} tokens came in one step after prefilling: LazyLLM takes the whole prompt in one forward "
            "pass, then one token a step (no prefill_chunk_size, assisted decoding or continued cache)"
        )
    if rope_switch is not None and tokens.prompt_length <= rope_switch < tokens.seen + new:
        raise LazyLLMError(
            f"the generation crosses {rope_switch} positions, where this model's rotary tables change and all of "
            "its cache with them: use a longer prompt, or fewer new tokens"
        )


def check_tensors(
    tokens: TokenCache, new: int, attention_mask: Any, position_ids: torch.Tensor | None, counted: bool
) -> None:
    """Refuse a mask that hides anything, and positions other than those that follow on the tokens so far.

    The host reads one value of the device, as the unmodified model does of its mask.

    Args:
        tokens: the generation's state before the step.
        new: tokens of the input.
        attention_mask: (1, positions) where given.
        position_ids: (..., new) where given.
        counted: whether the positions are known to be counted from the mask, one after the other.
    """
    total = tokens.seen + new
    conditions = {}
    if attention_mask is not None:
        if not isinstance(attention_mask, torch.Tensor) or attention_mask.ndim != 2:
            raise LazyLLMError("an attention mask of its own per query is not supported: LazyLLM is causal")
        if attention_mask.shape[1] != total:
            raise LazyLLMError(
                f"the attention mask is for {attention_mask.shape[1]} tokens, where there are {total} with those "
                "before: LazyLLM takes a prompt from its first token, and goes on with the cache of its own output"
            )
        hides = "the attention mask hides part of the prompt: LazyLLM takes one sequence without padding"
        conditions[hides] = attention_mask.all()
    if position_ids is not None:
        elsewhere = (
            f"the position_ids are not {tokens.seen} to {total - 1}, one for each token: LazyLLM takes a text from its "
            "first token, without gaps, images or packed sequences"
        )
        if position_ids.shape[-1] != new:
            raise LazyLLMError(elsewhere)
        if not counted:
            expected = torch.arange(tokens.seen, total, device=position_ids.device)
            conditions[elsewhere] = (position_ids == expected).all()
    if not conditions or bool(torch.stack([condition.bool() for condition in conditions.values()]).all()):
        return
    raise LazyLLMError(next(message for message, holds in conditions.items() if not holds))


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensor, value)))
