"""The state of the layers between two stages: which tokens are cached, active and computed there."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lazyllm.core.schedule import PruningSchedule, Stage

_PREFILL_ROOM = 128  # spare tokens of a new buffer
_DECODE_ROOM = 512  # spare tokens when a buffer grows later, so that decoding rarely reallocates


class GrowingTensor:
    """A buffer that grows along one dimension; elements keep their index once written.

    Args:
        dim: the dimension that grows.
        batch_size: size of the first dimension; None takes that of the tensors written.
        fill: value of elements not yet written; None leaves them uninitialised.
    """

    def __init__(self, dim: int, batch_size: int | None = None, fill: float | None = None) -> None:
        self.dim = dim
        self.length = 0  # elements written so far along `dim`
        self.nbytes = 0  # allocated, spare room included
        self.data: Tensor | None = None  # spare room included
        self._batch_size, self._fill = batch_size, fill

    def extend(self, length: int, like: Tensor) -> Tensor:
        """Make the buffer `length` long (never shorter) and return it; other sizes and dtype are those of `like`."""
        old = self.data
        if old is None or length > old.shape[self.dim]:
            shape = list(like.shape)
            shape[self.dim] = length + (_PREFILL_ROOM if old is None else _DECODE_ROOM)
            if self._batch_size is not None:
                shape[0] = self._batch_size
            # A tensor made in inference mode could not be written to outside of it, in a later step.
            with torch.inference_mode(False):
                self.data = like.new_empty(shape) if self._fill is None else like.new_full(shape, self._fill)
            self.nbytes = self.data.nbytes
            if old is not None:
                self.data.narrow(self.dim, 0, old.shape[self.dim]).copy_(old)
        self.length = max(self.length, length)
        return self.view

    @property
    def view(self) -> Tensor:
        """The elements written so far."""
        return self.data.narrow(self.dim, 0, self.length)


@dataclass
class LayerGroup:
    """The layers between two stages, and the tokens cached, active and computed in them.

    All layers of a group see the same tokens, and a token's key and value have the same slot in all of them. New slots
    follow the used ones. A step that ranks masks the slots of inactive tokens. The next one without ranking first moves
    active tokens to the last slots, so that attention reads one slice. The first group computes every token when it
    first appears: there, slot = position. Lists have one entry for each sequence of the batch.
    """

    index: int  # 0 for the first group
    layers: range  # the decoder layers of the group
    ranking_layers: list[int]  # layers that may rank: the last one, and earlier ones that see more than a window
    stage: Stage | None  # the stage that ends the group; None for the last group
    slots: GrowingTensor  # slot of each position, int64 (batch, positions), -1 without a KV entry; unused in group 0
    positions: GrowingTensor  # position of each slot, int64 (batch, slots); unused in group 0
    num_cached: list[int]  # slots in use, which is tokens with keys and values here
    active: list[Tensor | None]  # sorted active positions as last set, int64 (n,); later ones are active. None before
    ranked_tokens: list[int]  # tokens of the sequence when `active` was set
    # Of the current step:
    num_active: list[int] = field(default_factory=list)  # tokens in the active set
    num_queries: list[int] = field(default_factory=list)  # tokens computed
    first_key: int = 0  # the first slot that attention reads
    query_positions: Tensor | None = None  # positions computed, packed, sorted in each sequence, int64 (num_queries,)
    query_slots: Tensor | None = None  # their slots, int64 (num_queries,)
    batch_index: Tensor | None = None  # their sequences, int64 (num_queries,); None with one sequence
    active_mask: Tensor | None = None  # which slots from `first_key` on are active, bool (batch, n); None means all
    moves: tuple[Tensor | None, Tensor, Tensor] | None = None  # sequence, old slot and new slot of each key to move
    device: torch.device | None = None  # where these tensors are

    def to(self, device: torch.device) -> None:
        """Move the index tensors to the device of the layer that runs."""
        if device == self.device:
            return
        self.device = device
        for buffer in (self.slots, self.positions):
            if buffer.data is not None:
                buffer.data = buffer.data.to(device)
        for name in ("query_positions", "query_slots", "batch_index", "active_mask"):
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor.to(device))
        self.active = [None if positions is None else positions.to(device) for positions in self.active]


def partition(schedule: PruningSchedule, windows: list[int | None], batch_size: int) -> list[LayerGroup]:
    """Cut the layers into groups at the stages; a stage that keeps everything cuts nothing.

    `windows` are as in `engine.Setup`.
    """
    groups, start = [], 0
    for index, stage in enumerate([*schedule.pruning, None]):
        layers = range(start, len(windows) if stage is None else stage.layer + 1)
        ranking_layers = [layer for layer in layers if windows[layer] is None or layer == layers[-1]]
        buffers = GrowingTensor(1, batch_size, fill=-1), GrowingTensor(1, batch_size, fill=0)
        zeros = [0] * batch_size
        groups.append(
            LayerGroup(index, layers, ranking_layers, stage, *buffers, zeros, [None] * batch_size, zeros.copy())
        )
        start = layers.stop
    return groups
