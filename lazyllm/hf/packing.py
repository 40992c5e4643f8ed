"""Pack the tokens of a batch into one sequence, one prompt after the other, without the padding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.kv_cache import concat_ranges
from lazyllm.hf.arguments import input_tokens

_PER_TOKEN = ("input_ids", "inputs_embeds", "token_type_ids", "per_layer_inputs")


class BatchPacker:
    """Pack the new tokens of each pass over a batch; tokens that the mask hides are never computed."""

    def __init__(self, batch_size: int) -> None:
        # Which tokens have been computed, bool (batch, columns), on the CPU; the same, once the current pass has ended.
        self.computed = self.computed_after_pass = torch.ones(batch_size, 0, dtype=torch.bool, device="cpu")

    @property
    def num_columns(self) -> int:
        """Width of the passes so far, padding included."""
        return self.computed.shape[1]

    def pack(
        self,
        arguments: dict[str, Any],
        num_computed_tokens: list[int],
        *,
        has_ended: Sequence[bool] = (),
        more_chunks: bool = False,
    ) -> tuple[dict[str, Any], list[int], Tensor]:
        """Pack a decoder's arguments, (batch, width) tokens, into those of one sequence.

        Args:
            num_computed_tokens: of each sequence.
            has_ended: which sequences have ended, so that their new tokens are padding; empty means none.
            more_chunks: whether more chunks of the prompts follow, so that this one may be all padding.

        Returns:
            the arguments, how many tokens each sequence has in them, and their positions, int64 (tokens,).
        """
        tokens, mask = input_tokens(arguments), arguments.get("attention_mask")
        batch_size, width = len(self.computed), tokens.shape[1]
        total = self.num_columns + width
        if mask is None and not self.computed.all():  # `generate` omits one that hides nothing
            mask = torch.ones(batch_size, total, dtype=torch.bool, device="cpu")
        shape, expected = tuple(getattr(mask, "shape", ())), (batch_size, total)
        if mask is not None and shape != expected:
            raise LazyLLMError(f"the attention mask is of shape {shape}, and all tokens so far {expected}")
        is_new = self._new_tokens(mask, has_ended, width, more_chunks, arguments.get("position_ids") is not None)
        self.computed_after_pass = torch.cat([self.computed, is_new], dim=1)
        num_new = is_new.sum(dim=1).tolist()
        ranges = [range(start, start + count) for start, count in zip(num_computed_tokens, num_new, strict=True)]
        _check_positions(arguments, ranges, is_new)
        positions = concat_ranges(ranges, tokens.device)
        # The model itself would count padding in its positions.
        if batch_size > 1 or not self.computed_after_pass.all():
            arguments = {**arguments, "position_ids": positions[None], "attention_mask": None}
            arguments.pop("cache_position", None)
            for name in _PER_TOKEN:
                if (value := arguments.get(name)) is not None:
                    if value.shape[:2] != tokens.shape[:2]:
                        raise LazyLLMError(f"the {name}, of shape {tuple(value.shape)}, are not one per token")
                    arguments[name] = _packed(value, is_new)
        return arguments, num_new, positions

    def _new_tokens(
        self, mask: Tensor | None, has_ended: Sequence[bool], width: int, more_chunks: bool, has_positions: bool
    ) -> Tensor:
        """Return which tokens of a pass are computed, bool (batch, width), on the CPU."""
        is_live = torch.ones(len(self.computed), 1, dtype=torch.bool, device="cpu")
        if has_ended:
            is_live = ~torch.tensor(has_ended, device="cpu")[:, None]
        is_new = is_live.expand(-1, width)
        if mask is not None:
            shown = mask.bool().cpu()
            earlier, is_new = shown[:, : self.num_columns], shown[:, self.num_columns :] & is_live
            differs = (earlier != self.computed) & is_live
            if differs.any():
                if (differs & self.computed).any():
                    raise LazyLLMError("the attention mask hides tokens that an earlier pass has computed: show them")
                wrong = "the attention mask, or the lack of one, shows tokens that it hid in an earlier pass"
                raise LazyLLMError(f"{wrong}, or that came after a sequence had ended: hide them")
            if not has_positions and (~shown & (shown.cumsum(dim=1) > 0) & is_live).any():
                raise LazyLLMError("the attention mask hides tokens between others: pass position_ids, too")
            if more_chunks and not is_new.any():
                raise LazyLLMError("a chunk is all padding: use a larger prefill_chunk_size, or less padding")
            if not more_chunks and not (shown[:, -1:] | ~is_live).all():
                raise LazyLLMError("the attention mask hides a sequence's last token: pad prompts at their left")
        return is_new


def _packed(value: Tensor, is_new: Tensor) -> Tensor:
    """Return (batch, width, ...) as (1, tokens, ...) with the new tokens, bool (batch, width)."""
    flat = value.flatten(0, 1)
    if not is_new.all():
        flat = flat.index_select(0, is_new.flatten().nonzero()[:, 0].to(flat.device))
    return flat[None]


def _check_positions(arguments: dict[str, Any], ranges: list[range], is_new: Tensor) -> None:
    """Refuse position_ids other than those in `ranges`, one per sequence, in each of their axes; read the device once.

    `is_new`, bool (batch, width), marks the tokens of the pass that are computed.
    """
    position_ids, width = arguments.get("position_ids"), input_tokens(arguments).shape[1]
    if position_ids is None:
        return
    by_sequence = position_ids.expand(*position_ids.shape[:-2], len(ranges), width)
    given = by_sequence.flatten(-2) if is_new.all() else by_sequence[..., is_new.to(position_ids.device)]
    if not (given == concat_ranges(ranges, given.device)).all():
        one = f"{ranges[0].start} to {ranges[0].stop - 1}"
        must = one if len(ranges) == 1 else "those that continue each sequence"
        needs = "all tokens of a text from the first on, without gaps, and no images with positions of their own"
        raise LazyLLMError(f"the position_ids are not {must}: LazyLLM needs {needs}")
