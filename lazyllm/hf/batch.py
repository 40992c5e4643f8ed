"""Several sequences as one: the tokens of a batch one after the other, without its padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from lazyllm.hf.refusals import refusal, refuse_if
from lazyllm.hf.requests import given_tokens

_PER_TOKEN = ("input_ids", "inputs_embeds", "token_type_ids", "visual_pos_masks", "per_layer_inputs")


@dataclass(frozen=True)
class Known:
    """What is known of a pass, besides its arguments.

    Attributes:
        mask: (sequences, columns so far + width), which tokens are to be seen; None means all.
        grows: the mask is not given again, and is that of before with ones for the new tokens.
        ended: which sequences have ended, so that what comes of them is no token.
        counted: whether the position_ids are known to be counted from the mask, one after the other.
        chunked: whether more chunks of the prompts follow, so that some may have no token in this one.
        follows: whether the positions are known to be made together with those of the pass before.
    """

    mask: torch.Tensor | None
    grows: bool
    ended: list[bool]
    counted: bool
    chunked: bool
    follows: bool


class Batch:
    """Tells whose each token of a batch is, pass by pass. What a mask hides is nobody's, and is never computed.

    Attributes:
        columns: width of the passes so far, padding included.
    """

    def __init__(self, count: int) -> None:
        self.columns = 0
        self._count = count
        # Which tokens have been computed, bool (count, columns), on the CPU; None means all of them.
        self._computed: torch.Tensor | None = None
        # The inputs since a sequence ended, by name, (count, width, ...): its own were left out, and a later turn may
        # ask for them.
        self._left_out: dict[str, torch.Tensor] = {}
        self._reach = [-1] * count
        self._next: tuple[int, torch.Tensor | None, dict[str, torch.Tensor], list[int]] = 0, None, {}, self._reach

    def advance(self) -> None:
        """Count the pass that was packed last, which has gone through all layers."""
        self.columns, self._computed, self._left_out, self._reach = self._next

    def pack(
        self, kwargs: dict[str, Any], seen: list[int], known: Known
    ) -> tuple[dict[str, Any], list[int], torch.Tensor | None]:
        """A decoder's arguments as those of one sequence.

        Args:
            kwargs: the arguments, of (count, width) tokens.
            seen: positions that each sequence has so far.
            known: what is known of the pass.

        Returns:
            the arguments, how many tokens of each sequence are in them, and the positions of these, int64 (tokens,),
            or None where there is one sequence.

        Raises:
            LazyLLMError: the mask, or the positions, are not those of texts that go on.
        """
        mask, ended = known.mask, known.ended
        width = given_tokens(kwargs).shape[1]
        total = self.columns + width
        self._check_shape(mask, total)
        refuse_if(mask is None and (not known.grows) and (self._computed is not None), "padding_before")
        before, late, here = self._computed, None, None
        if any(ended) or (mask is not None and (before is not None or not bool(mask.all()))):
            before = torch.ones(self._count, self.columns, dtype=torch.bool) if before is None else before
            over = torch.tensor(ended)[:, None]
            if mask is None:
                here = ~over.expand(-1, width)
            else:
                shown = torch.where(over, pad(before, (0, width)), mask.bool().cpu())
                self._check_shown(shown, before, over, known.chunked, kwargs.get("position_ids") is not None)
                late, here = shown[:, : self.columns] & ~before, shown[:, self.columns :]
                late = late if late.any() else None
            here = None if late is None and here.all() else here
        if here is None:
            fresh, new = None, [width] * self._count
        else:
            fresh = here if late is None else torch.cat([late, here], dim=1)
            new = fresh.sum(dim=1).tolist()
        ranges = [range(start, start + count) for start, count in zip(seen, new, strict=True)]
        kept = _check_positions(kwargs, ranges, here, known.counted)
        computed = None
        if before is not None or here is not None:
            computed = torch.ones(self._count, width, dtype=torch.bool) if here is None else here
            computed = torch.cat([before if late is None else before | late, computed], dim=1)
            computed = None if computed.all() else computed
        left_out = {} if mask is not None and not any(ended) else self._remembered(kwargs, any(ended))
        self._next = total, computed, left_out, self._reached(ranges, kept, here, known.follows)
        if here is None and self._count == 1:
            return kwargs, new, None
        packed, positions = self._at(
            kwargs, ranges, kept, None if fresh is None else fresh.nonzero(), width, late is not None
        )
        return packed, new, None if self._count == 1 else positions

    def _reached(
        self, ranges: list[range], kept: torch.Tensor | None, here: torch.Tensor | None, follows: bool
    ) -> list[int]:
        """The largest position of each sequence, this pass's included, which must begin behind the last unless known.

        `kept` are positions of a text with images, see `_check_positions`, and `here` tells whose are in them.
        """
        reached = []
        for index, (before, part) in enumerate(zip(self._reach, ranges, strict=True)):
            first, last = part.start, part.stop - 1
            if kept is not None and part:
                # Of four axes the first counts the tokens.
                axes = kept[-3:, index].cpu()
                axes = axes if here is None else axes[:, here[index]]
                first, last = int(axes[:, 0].max()), int(axes.max())
            refuse_if(
                part and (not follows) and (first != before + 1),
                "images_between",
                first=first,
                index=index,
                before=before,
            )
            reached.append(max(last, before) if part else before)
        return reached

    def _at(
        self,
        kwargs: dict[str, Any],
        ranges: list[range],
        kept: torch.Tensor | None,
        places: torch.Tensor | None,
        width: int,
        late: bool,
    ) -> tuple[dict[str, Any], torch.Tensor]:
        """The arguments for the tokens at `places`, int64 (tokens, 2), and their positions.

        A place is (sequence, column), with the columns of earlier passes before those of this one where there are
        tokens of those, `late`. None means all tokens of this pass.
        """
        if places is None:
            return _packed(kwargs, ranges, kept, None, {})
        first = self.columns if late else 0
        index = places[:, 0] * width + places[:, 1] - first
        if late:
            old = places[:, 1] < first
            given = [name for name in _PER_TOKEN if kwargs.get(name) is not None]
            left = self._left_out[given[0]].shape[1] if set(given) <= set(self._left_out) else 0
            begin = first - left
            refuse_if((places[old, 1] < begin).any(), "late_tokens")
            index[old] = self._count * width + places[old, 0] * left + places[old, 1] - begin
        return _packed(kwargs, ranges, kept, index, self._left_out if late else {})

    def _remembered(self, kwargs: dict[str, Any], ended: bool) -> dict[str, torch.Tensor]:
        """What is to be remembered of the inputs since a sequence ended, those of this pass included."""
        if not self._left_out and not ended:
            return {}
        given = {name: kwargs[name] for name in _PER_TOKEN if kwargs.get(name) is not None}
        if not self._left_out:
            return given
        kept = self._left_out.items()
        return {name: torch.cat([before, given[name]], dim=1) for name, before in kept if name in given}

    def _check_shape(self, mask: Any, total: int) -> None:
        if mask is None:
            return
        refuse_if(not isinstance(mask, torch.Tensor) or mask.ndim != 2, "own_mask")
        refuse_if(mask.shape != (self._count, total), "mask_shape", mask=tuple(mask.shape), total=(self._count, total))

    def _check_shown(
        self, shown: torch.Tensor, before: torch.Tensor, ended: torch.Tensor, chunked: bool, placed: bool
    ) -> None:
        refuse_if((before & ~shown[:, : self.columns]).any(), "hides_computed")
        refuse_if(not placed and (~shown & (shown.cumsum(dim=1) > 0)).any(), "hides_between")
        if chunked:
            refuse_if(not (shown[:, self.columns :].any() or (shown[:, : self.columns] & ~before).any()), "empty_chunk")
            return
        begun = shown.any(dim=1)
        if not begun.all():
            index = begun.tolist().index(False)
            raise refusal("hides_all", index=index)
        refuse_if(not (shown[:, -1:] | ended).all(), "hides_last")


def _packed(
    kwargs: dict[str, Any],
    ranges: list[range],
    kept: torch.Tensor | None,
    index: torch.Tensor | None,
    left_out: dict[str, torch.Tensor],
) -> tuple[dict[str, Any], torch.Tensor]:
    """The arguments for the tokens at `index` of all, behind which those of `left_out` lie, and their positions.

    What the model is told of positions is `kept`, (axes, sequences, width), as `_check_positions` returned it, else
    the positions themselves.
    """
    device = given_tokens(kwargs).device
    positions = torch.cat([torch.arange(part.start, part.stop) for part in ranges]).to(device)
    told = positions[None]
    if kept is not None:
        flat = kept.flatten(1)
        told = (flat if index is None else flat.index_select(1, index.to(flat.device)))[:, None]
    changed = {"position_ids": told, "attention_mask": None}
    for name in _PER_TOKEN:
        if (given := kwargs.get(name)) is not None:
            refuse_if(
                given.shape[:2] != given_tokens(kwargs).shape[:2], "per_token", name=name, given=tuple(given.shape)
            )
            flat = given.flatten(0, 1)
            if left_out:
                flat = torch.cat([flat, left_out[name].flatten(0, 1)])
            changed[name] = (flat if index is None else flat.index_select(0, index.to(flat.device)))[None]
    return {name: value for name, value in kwargs.items() if name != "cache_position"} | changed, positions


def _check_positions(
    kwargs: dict[str, Any], ranges: list[range], here: torch.Tensor | None, counted: bool
) -> torch.Tensor | None:
    """Refuse positions other than those that follow on each sequence's tokens so far; reads the device once.

    `here` tells which tokens of the pass are computed, bool (sequences, width); None means all.

    Returns:
        positions that are to be kept as they are, of a text with images: (axes, sequences, width), in time, height
        and width, which only the rotary tables know; None where a text's own positions say all.
    """
    given = kwargs.get("position_ids")
    if given is None:
        return None
    first, last = ranges[0].start, ranges[0].stop - 1
    where = f"{first} to {last}" if len(ranges) == 1 else "those that follow on each sequence's tokens"
    error = refusal("positions", where=where)
    width = given_tokens(kwargs).shape[1]
    refuse_if(given.shape[-1] != width, "position_width", given=given.shape[-1], width=width)
    if counted:
        return None
    whole = given.expand(*given.shape[:-2], len(ranges), width)
    # Tokens that an earlier pass left out come first, and have no positions here.
    counts = [width] * len(ranges) if here is None else here.sum(dim=1).tolist()
    spans = [(part.stop - count, part.stop) for part, count in zip(ranges, counts, strict=True)]
    found = whole.flatten(-2) if here is None else whole[..., here.to(given.device)]
    if len(spans) == 1:
        expected = torch.arange(*spans[0], device=given.device)
    else:
        expected = torch.cat([torch.arange(*span) for span in spans]).to(given.device)
    same = (found == expected).view(-1, found.shape[-1]).all(dim=-1).tolist()
    if all(same):
        return None
    # Of four axes the first counts the tokens, as no axis of images does.
    if given.ndim != 3 or (len(same) == 4 and not same[0]):
        raise error
    refuse_if(sum(map(len, ranges)) != found.shape[-1], "late_images")
    return whole
