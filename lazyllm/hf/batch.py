"""Several sequences as one: the tokens of a batch one after the other, without its padding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from lazyllm.core.engine import joined
from lazyllm.hf.refusals import refusal, refuse_if
from lazyllm.hf.requests import given_tokens

_PER_TOKEN = ("input_ids", "inputs_embeds", "token_type_ids", "visual_pos_masks", "per_layer_inputs")


class Batch:
    """Tells whose each token of a batch is, pass by pass. What a mask hides is nobody's, and is never computed."""

    def __init__(self, count: int) -> None:
        self.columns = 0  # width of the passes so far, padding included
        self._count = count
        # Which tokens have been computed, bool (count, columns), on the CPU; None means all of them.
        self._computed: torch.Tensor | None = None
        # The inputs since a sequence ended, by name, (count, width, ...): its own were left out, and a later turn may
        # ask for them.
        self._left_out: dict[str, torch.Tensor] = {}
        self._next: tuple[int, torch.Tensor | None, dict[str, torch.Tensor]] = 0, None, {}

    def advance(self) -> None:
        """Count the pass that was packed last, which has gone through all layers."""
        self.columns, self._computed, self._left_out = self._next

    def coming(self) -> torch.Tensor:
        """Which tokens have been computed once the pass that was packed last has ended, bool (count, columns)."""
        return self._known(*self._next[:2])

    def pack(
        self,
        kwargs: dict[str, Any],
        seen: list[int],  # positions that each sequence has so far
        *,
        ended: Sequence[bool] = (),  # which sequences have ended, so that what comes of them is no token
        grows: bool = False,  # whether the mask is that of before with ones for the new tokens
        counted: bool = False,  # whether the position_ids are counted from the mask, one after the other
        chunked: bool = False,  # whether more chunks of the prompts follow, so that some may have no token in this one
    ) -> tuple[dict[str, Any], list[int], torch.Tensor]:
        """A decoder's arguments, of (count, width) tokens, as those of one sequence; what else is known is optional.

        Gives them, how many tokens of each sequence are in them, and the positions of these, int64 (tokens,).
        """
        mask, over = None if grows else kwargs.get("attention_mask"), any(ended)
        given = {name: kwargs[name] for name in _PER_TOKEN if kwargs.get(name) is not None}
        width = given_tokens(kwargs).shape[1]
        if mask is None and not grows and self._computed is not None:
            mask = self._known(self.columns + width, None)  # `generate` leaves out one that hides nothing
        if mask is not None:
            refuse_if(not isinstance(mask, torch.Tensor) or mask.ndim != 2, "own_mask")
            total = self._count, self.columns + width
            refuse_if(mask.shape != total, "mask_shape", mask=tuple(mask.shape), total=total)
        before, fresh, computed = self._computed, None, None
        if over or (mask is not None and (before is not None or not bool(mask.all()))):
            placed = kwargs.get("position_ids") is not None
            fresh = self._fresh(mask, ended if over else [False] * self._count, width, chunked, placed)
        if before is not None or fresh is not None:
            computed = pad(self._known(self.columns, before), (0, width), value=fresh is None)
            computed = computed if fresh is None else computed | fresh
            computed = None if computed.all() else computed
        here = None if fresh is None else fresh[:, self.columns :]
        new = [width] * self._count if fresh is None else fresh.sum(dim=1).tolist()
        ranges = [range(start, start + count) for start, count in zip(seen, new, strict=True)]
        kept = _check_positions(kwargs, ranges, here, counted)
        left_out = given if over else {}
        if self._left_out and (over or mask is None):
            earlier = self._left_out.items()
            left_out = {name: torch.cat([value, given[name]], dim=1) for name, value in earlier if name in given}
        self._next = self.columns + width, computed, left_out
        positions = joined(ranges, given_tokens(kwargs).device)
        # Padding of earlier passes counts in the model's own positions.
        if fresh is not None or before is not None or self._count > 1:
            kwargs = self._packed(kwargs, given, positions, kept, fresh)
        return kwargs, new, positions

    def _known(self, columns: int, computed: torch.Tensor | None) -> torch.Tensor:
        """What is computed, bool (count, columns), on the CPU whatever the default device is; None means all of it."""
        return torch.ones(self._count, columns, dtype=torch.bool, device="cpu") if computed is None else computed

    def _fresh(
        self, mask: torch.Tensor | None, ended: Sequence[bool], width: int, chunked: bool, placed: bool
    ) -> torch.Tensor | None:
        """Which tokens a pass computes, bool (count, columns + width), on the CPU; None means its own and all of them.

        Some may be of earlier columns, which `mask` hid until now.
        """
        before = pad(self._known(self.columns, self._computed), (0, width))
        over = torch.tensor(ended, device="cpu")[:, None]
        whole = torch.arange(self.columns + width, device="cpu").expand_as(before) >= self.columns
        shown = torch.where(over, before, before | whole if mask is None else mask.bool().cpu())
        fresh = shown & ~before
        if mask is not None:
            refuse_if((before & ~shown).any(), "hides_computed")
            refuse_if(not placed and (~shown & (shown.cumsum(dim=1) > 0)).any(), "hides_between")
            refuse_if(chunked and not fresh.any(), "empty_chunk")
            refuse_if(not chunked and not (shown[:, -1:] | over).all(), "hides_last")
        return None if torch.equal(fresh, whole) else fresh

    def _packed(
        self,
        kwargs: dict[str, Any],
        given: dict[str, torch.Tensor],
        positions: torch.Tensor,
        kept: torch.Tensor | None,
        fresh: torch.Tensor | None,
    ) -> dict[str, Any]:
        """The arguments for the tokens of `fresh`, at these positions; `given` are those that are one for each token.

        The model is told `kept` of the positions, see `_check_positions`, or else the positions themselves.
        """
        shape, index, late = given_tokens(kwargs).shape[:2], None, False
        if fresh is not None:
            places = fresh.nonzero()
            late = bool(fresh[:, : self.columns].any()) and given.keys() <= self._left_out.keys()
            first = self.columns - (next(iter(self._left_out.values())).shape[1] if late else 0)
            refuse_if((places[:, 1] < first).any(), "late_tokens")
            index = places[:, 0] * (fresh.shape[1] - first) + places[:, 1] - first

        def packed(value: torch.Tensor, dim: int) -> torch.Tensor:
            flat = value.flatten(dim, dim + 1)
            return (flat if index is None else flat.index_select(dim, index.to(flat.device))).unsqueeze(dim)

        told = positions[None] if kept is None else packed(kept, 1)
        changed = {"position_ids": told, "attention_mask": None}
        for name, value in given.items():
            refuse_if(value.shape[:2] != shape, "per_token", name=name, given=tuple(value.shape))
            changed[name] = packed(torch.cat([self._left_out[name], value], dim=1) if late else value, 0)
        return {name: value for name, value in kwargs.items() if name != "cache_position"} | changed


def _check_positions(
    kwargs: dict[str, Any], ranges: list[range], here: torch.Tensor | None, counted: bool
) -> torch.Tensor | None:
    """Refuse positions other than those that follow on each sequence's tokens so far; reads the device once.

    `here` tells which tokens of the pass are computed, bool (sequences, width); None means all. Gives the positions
    that are to be kept as they are, of a text with images: (axes, sequences, width), in time, height and width, which
    only the rotary tables know; None where a text's own positions say all.
    """
    given, width = kwargs.get("position_ids"), given_tokens(kwargs).shape[1]
    if given is None:
        return None
    refuse_if(given.shape[-1] != width, "position_width", given=given.shape[-1], width=width)
    if counted:
        return None
    whole = given.expand(*given.shape[:-2], len(ranges), width)
    # Tokens that an earlier pass left out come first, and have no positions here.
    counts = [width] * len(ranges) if here is None else here.sum(dim=1).tolist()
    found = whole.flatten(-2) if here is None else whole[..., here.to(given.device)]
    spans = [range(part.stop - count, part.stop) for part, count in zip(ranges, counts, strict=True)]
    same = (found == joined(spans, given.device)).view(-1, found.shape[-1]).all(dim=-1).tolist()
    if all(same):
        return None
    # Of four axes the first counts the tokens, as no axis of images does.
    if given.ndim != 3 or (len(same) == 4 and not same[0]):
        one = f"{ranges[0].start} to {ranges[0].stop - 1}"
        raise refusal("positions", where=one if len(ranges) == 1 else "those that follow on each sequence's tokens")
    refuse_if(sum(map(len, ranges)) != found.shape[-1], "late_tokens")
    return whole
