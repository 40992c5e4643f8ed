"""What is known of the tokens so far: active sets and slots group by group, and tensors that grow with them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lazyllm.core.schedule import PruningSchedule, Stage

_SLACK = 128  # tokens of room to spare at first: prefilling holds little that it does not need
_GROWTH = 512  # tokens of room to spare when a buffer must grow later, so that decoding rarely reallocates


class GrowingTensor:
    """A tensor that grows along one dimension; elements once written keep their place.

    Args:
        dim: the dimension that grows.
        count: the size of the first dimension, such as one entry a sequence; None takes that of what is written.
        fill: what a new place holds before it is written; None leaves it uninitialised.
    """

    def __init__(self, dim: int, count: int | None = None, fill: float | None = None) -> None:
        self.dim = dim
        self.length = 0
        self._count = count
        self._fill = fill
        self._room = 0
        self.data: torch.Tensor | None = None  # room to spare included

    def extend(self, length: int, like: torch.Tensor) -> torch.Tensor:
        """Make the tensor `length` long (never shorter) and return it; other sizes and dtype are those of `like`."""
        if length > self._room:
            old, shape = self.data, list(like.shape)
            shape[self.dim] = self._room = length + (_SLACK if old is None else _GROWTH)
            if self._count is not None:
                shape[0] = self._count
            # A tensor made in inference mode could not be written to outside of it, in a later step.
            with torch.inference_mode(False):
                self.data = like.new_empty(shape) if self._fill is None else like.new_full(shape, self._fill)
            if old is not None:
                self.data.narrow(self.dim, 0, old.shape[self.dim]).copy_(old)
        if length > self.length:
            self.length = length
        return self.data.narrow(self.dim, 0, self.length)

    def append(self, piece: torch.Tensor) -> None:
        """Write `piece` behind what is there."""
        start, size = self.length, piece.shape[self.dim]
        self.extend(start + size, piece).narrow(self.dim, start, size).copy_(piece)

    def to(self, device: torch.device) -> None:
        """Move the tensor to a device."""
        if self.data is not None:
            self.data = self.data.to(device)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to spare included."""
        return 0 if self.data is None else self.data.nbytes

    @property
    def view(self) -> torch.Tensor:
        """What has been written so far, as a view."""
        return self.data.narrow(self.dim, 0, self.length)


@dataclass
class LayerGroup:
    """The layers between two stages. All of them see the same tokens, so what holds for one holds for all.

    A token's key and value lie at the same slot in every layer of the group, in the order of their computation, for
    good; those that sit out a step are masked. The first group computes every token when it first appears: there,
    slot = position. Lists have an entry for each of the `count` sequences.
    """

    index: int
    layers: range  # the decoder layers of the group
    stage: Stage | None  # the one that ends it; None for the last group
    # Unused in the first group: slot of each position, int64 (count, positions), -1 where nothing was computed, and
    # position of each slot, int64 (count, slots).
    slots: GrowingTensor
    positions: GrowingTensor
    # How many tokens have keys and values here, take part in this step, and are computed in it.
    n_cached: list[int]
    n_active: list[int] = field(default_factory=list)
    n_rows: list[int] = field(default_factory=list)
    # The positions that take part in this step, sorted, int64 (n_active,) each; None means all of them.
    active: list[torch.Tensor | None] = field(default_factory=list)
    # Positions computed in this step, sorted, those of one sequence after the other, and their slots, int64 (rows,);
    # None means the new tokens of the only sequence.
    rows: torch.Tensor | None = None
    row_slots: torch.Tensor | None = None
    # The sequence of each row, int64 (rows,); None where there is one sequence.
    owners: torch.Tensor | None = None
    # The slots of the active tokens, in order of position, int64 (count, most n_active), where attention gets these
    # alone; None where it gets all slots. Which of those it gets take part, bool (count, keys); None means all of them.
    gathered: torch.Tensor | None = None
    present: torch.Tensor | None = None

    @property
    def n_keys(self) -> list[int]:
        """How many keys attention gets of each sequence."""
        return self.n_cached if self.gathered is None else self.n_active

    def to(self, device: torch.device) -> None:
        """Move what says where the tokens are to the device of the layer that runs."""
        for tensor in (self.slots, self.positions):
            tensor.to(device)
        for name in ("rows", "row_slots", "owners", "gathered", "present"):
            if (part := getattr(self, name)) is not None:
                setattr(self, name, part.to(device))
        self.active = [None if part is None else part.to(device) for part in self.active]


def partition(schedule: PruningSchedule, num_layers: int, count: int) -> list[LayerGroup]:
    """Cut the layers into groups, for `count` sequences; a stage that keeps everything cuts nothing."""
    groups, start = [], 0
    for index, stage in enumerate([*schedule.pruning, None]):
        layers = range(start, num_layers if stage is None else stage.layer + 1)
        places = GrowingTensor(1, count, fill=-1), GrowingTensor(1, count, fill=0)
        groups.append(LayerGroup(index, layers, stage, *places, [0] * count))
        start = layers.stop
    return groups
