"""Pack the tokens of a batch into one sequence, one prompt after the other, without the padding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lazyllm.core.engine import concat_ranges
from lazyllm.core.errors import LazyLLMError
from lazyllm.hf.arguments import input_tokens

_LATE = "the attention mask, or the lack of one, shows tokens that it hid in an earlier pass: leave it as it was"
_PER_TOKEN = ("input_ids", "inputs_embeds", "token_type_ids", "visual_pos_masks", "per_layer_inputs")


class BatchPacker:
    """Tell, pass by pass, which tokens of a batch are new; what a mask hides is never computed.

    Attributes:
        num_columns: width of the passes so far, padding included.
    """

    def __init__(self, batch_size: int) -> None:
        self.num_columns = 0
        self._batch_size = batch_size
        # Which tokens have been computed, bool (batch, columns), on the CPU; None means all.
        self._computed: Tensor | None = None
        # Inputs by name, (batch, width, ...), of the passes since a sequence ended: a later turn may show its last
        # token, which has not been computed.
        self._left_out: dict[str, Tensor] = {}
        self._after_pass: tuple[int, Tensor | None, dict[str, Tensor]] = 0, None, {}

    def advance(self) -> None:
        """Count the current pass, which has gone through all layers."""
        self.num_columns, self._computed, self._left_out = self._after_pass

    def computed_after_pass(self) -> Tensor:
        """Return which tokens have been computed once the current pass has ended, bool (batch, columns)."""
        return self._or_all(*self._after_pass[1::-1])

    def pack(
        self,
        arguments: dict[str, Any],
        num_computed_tokens: list[int],
        *,
        has_ended: Sequence[bool] = (),
        mask_grows: bool = False,
        are_counted: bool = False,
        more_chunks: bool = False,
    ) -> tuple[dict[str, Any], list[int], Tensor]:
        """Return a decoder's arguments, of (batch, width) tokens, as those of one sequence.

        Args:
            arguments: by name.
            num_computed_tokens: of each sequence.
            has_ended: which sequences have ended, so that their new tokens are padding; empty means none.
            mask_grows: whether the mask is known to be the last pass's with ones for the new tokens.
            are_counted: whether the position_ids are known to be counted from the mask.
            more_chunks: whether more chunks of the prompts follow, so that this one may hold padding alone.

        Returns:
            the arguments, how many tokens each sequence has in them, and their positions, int64 (tokens,).
        """
        tokens, before = input_tokens(arguments), self._computed
        width, mask = tokens.shape[1], None if mask_grows else arguments.get("attention_mask")
        total = self.num_columns + width
        if mask is None and not mask_grows and before is not None:
            mask = self._or_all(None, total)  # `generate` leaves out one that hides nothing
        shape, expected = tuple(getattr(mask, "shape", ())), (self._batch_size, total)
        if mask is not None and shape != expected:
            raise LazyLLMError(f"the attention mask is of shape {shape}, and all tokens so far {expected}")
        is_new = computed = None  # bool (batch, total)
        if any(has_ended) or (mask is not None and (before is not None or not bool(mask.all()))):
            has_positions = arguments.get("position_ids") is not None
            is_new = self._new_tokens(mask, has_ended, width, more_chunks, has_positions)
        if before is not None or is_new is not None:
            computed = pad(self._or_all(before, self.num_columns), (0, width), value=is_new is None)
            computed = computed if is_new is None else computed | is_new
            computed = None if computed.all() else computed
        per_token = {name: arguments[name] for name in _PER_TOKEN if arguments.get(name) is not None}
        left_out = per_token if any(has_ended) else {}
        if self._left_out and (any(has_ended) or mask_grows):
            names = self._left_out.keys() & per_token.keys()
            left_out = {name: torch.cat([self._left_out[name], per_token[name]], dim=1) for name in names}
        self._after_pass = total, computed, left_out
        num_new = [width] * self._batch_size if is_new is None else is_new.sum(dim=1).tolist()
        ranges = [range(start, start + count) for start, count in zip(num_computed_tokens, num_new, strict=True)]
        in_pass = None if is_new is None else is_new[:, self.num_columns :]
        image_positions = _check_positions(arguments, ranges, in_pass, are_counted)
        positions = concat_ranges(ranges, tokens.device)
        # Padding of earlier passes counts in the model's own positions.
        if is_new is not None or before is not None or self._batch_size > 1:
            told = positions[None] if image_positions is None else _packed(image_positions, in_pass, 1)
            arguments = {**arguments, **self._packed_tokens(per_token, is_new), "position_ids": told}
            arguments["attention_mask"] = None
            arguments.pop("cache_position", None)
        return arguments, num_new, positions

    def _or_all(self, computed: Tensor | None, num_columns: int) -> Tensor:
        if computed is None:
            return torch.ones(self._batch_size, num_columns, dtype=torch.bool, device="cpu")
        return computed

    def _new_tokens(
        self, mask: Tensor | None, has_ended: Sequence[bool], width: int, more_chunks: bool, has_positions: bool
    ) -> Tensor | None:
        """Return which tokens a pass computes, bool (batch, columns + width), on the CPU; None means its own, all.

        Tokens of earlier columns are among them if an earlier mask hid them.
        """
        before = pad(self._or_all(self._computed, self.num_columns), (0, width))
        over = torch.tensor(has_ended or [False] * self._batch_size, device="cpu")[:, None]
        in_pass = torch.arange(self.num_columns + width, device="cpu").expand_as(before) >= self.num_columns
        shown = torch.where(over, before, before | in_pass if mask is None else mask.bool().cpu())
        is_new = shown & ~before
        if mask is not None:
            if (before & ~shown).any():
                raise LazyLLMError("the attention mask hides tokens that an earlier pass has computed: show them")
            if not has_positions and (~shown & (shown.cumsum(dim=1) > 0)).any():
                raise LazyLLMError("the attention mask hides tokens between others: give position_ids, too")
            if more_chunks and not is_new.any():
                raise LazyLLMError("a chunk holds padding alone: use a larger prefill_chunk_size, or less padding")
            if not more_chunks and not (shown[:, -1:] | over).all():
                raise LazyLLMError("the attention mask hides a sequence's last token: pad prompts at their left")
        return None if torch.equal(is_new, in_pass) else is_new

    def _packed_tokens(self, per_token: dict[str, Tensor], is_new: Tensor | None) -> dict[str, Tensor]:
        """Return the inputs of a pass, (batch, width, ...), for the new tokens alone, (1, tokens, ...)."""
        shape = next(iter(per_token.values())).shape[:2]
        for name, value in per_token.items():
            if value.shape[:2] != shape:
                raise LazyLLMError(f"the {name}, of shape {tuple(value.shape)}, are not one for each token")
        if is_new is not None:
            first = self.num_columns
            if is_new[:, :first].any() and per_token.keys() <= self._left_out.keys():
                per_token = {name: torch.cat([self._left_out[name], new], 1) for name, new in per_token.items()}
                first += shape[1] - next(iter(per_token.values())).shape[1]
            if is_new[:, :first].any():
                raise LazyLLMError(_LATE)
            is_new = is_new[:, first:]
        return {name: _packed(value, is_new, 0) for name, value in per_token.items()}


def _packed(value: Tensor, is_new: Tensor | None, dim: int) -> Tensor:
    """Return (..., batch, width, ...) as (..., 1, tokens, ...) with the new tokens, bool (batch, width), or all."""
    flat = value.flatten(dim, dim + 1)
    if is_new is not None:
        flat = flat.index_select(dim, is_new.flatten().nonzero()[:, 0].to(flat.device))
    return flat.unsqueeze(dim)


def _check_positions(
    arguments: dict[str, Any], ranges: list[range], in_pass: Tensor | None, are_counted: bool
) -> Tensor | None:
    """Refuse position_ids other than those in the ranges, one for each sequence; reads the device once.

    Those of a text with images, (axes, batch, width), in time, height and width, are returned: only the rotary tables
    know them. `in_pass` tells which tokens of the pass are new, bool (batch, width); new ones before it come first.
    """
    position_ids, width = arguments.get("position_ids"), input_tokens(arguments).shape[1]
    if position_ids is None:
        return None
    if position_ids.shape[-1] != width:
        wrong = f"the position_ids, or the mask they are counted from, are for {position_ids.shape[-1]} tokens"
        raise LazyLLMError(f"{wrong}, where the pass has {width}")
    if are_counted:
        return None
    by_sequence = position_ids.expand(*position_ids.shape[:-2], len(ranges), width)
    counts = [width] * len(ranges) if in_pass is None else in_pass.sum(dim=1).tolist()
    given = by_sequence.flatten(-2) if in_pass is None else by_sequence[..., in_pass.to(position_ids.device)]
    expected = [range(part.stop - count, part.stop) for part, count in zip(ranges, counts, strict=True)]
    is_text = (given == concat_ranges(expected, given.device)).view(-1, given.shape[-1]).all(dim=-1).tolist()
    if all(is_text):
        return None
    # Of four axes the first counts the tokens, as no axis of images does.
    if position_ids.ndim != 3 or (len(is_text) == 4 and not is_text[0]):
        one = f"{ranges[0].start} to {ranges[0].stop - 1}"
        must = one if len(ranges) == 1 else "those that follow on each sequence's tokens"
        raise LazyLLMError(f"the position_ids are not {must}: LazyLLM takes a text from its first token, without gaps")
    if sum(map(len, ranges)) != given.shape[-1]:
        raise LazyLLMError(_LATE)
    return by_sequence
