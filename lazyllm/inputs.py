"""What LazyLLM takes as the input of a forward pass."""

from __future__ import annotations

import torch

from lazyllm.errors import LazyLLMError
from lazyllm.tokens import TokenCache


def check_step(tokens: TokenCache, new: int, rope_switch: int | None) -> None:
    """Refuse a step that LazyLLM cannot take, by its sizes alone.

    Args:
        tokens: the generation's state before the step.
        new: tokens of the input.
        rope_switch: number of positions beyond which the model's rotary tables change, if they do.

    Raises:
        LazyLLMError: several tokens after prefilling, or a step across `rope_switch`.
    """
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
    tokens: TokenCache, new: int, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None
) -> None:
    """Refuse a mask that hides anything, and positions other than those that follow on the tokens so far.

    The host reads one value of the device, as the unmodified model does of its mask.

    Args:
        tokens: the generation's state before the step.
        new: tokens of the input.
        attention_mask: (1, positions) where given.
        position_ids: (..., new) where given.

    Raises:
        LazyLLMError: a mask or positions that LazyLLM does not take.
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
        expected = torch.arange(tokens.seen, total, device=position_ids.device)
        elsewhere = (
            f"the position_ids are not {tokens.seen} to {total - 1}, one for each token: LazyLLM takes a text from its "
            "first token, without gaps, images or packed sequences"
        )
        if position_ids.shape[-1] != new:
            raise LazyLLMError(elsewhere)
        conditions[elsewhere] = (position_ids == expected).all()
    if not conditions or bool(torch.stack([condition.bool() for condition in conditions.values()]).all()):
        return
    raise LazyLLMError(next(message for message, holds in conditions.items() if not holds))
