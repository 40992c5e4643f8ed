"""Tensors that grow by one token or many without being copied at every step."""

from __future__ import annotations

import torch

_SLACK = 128  # tokens of room to spare at first: prefilling holds little that it does not need
_GROWTH = 512  # tokens of room to spare when a buffer must grow later, so that decoding rarely reallocates


class GrowingTensor:
    """A tensor that grows along one dimension; elements once written keep their place.

    Args:
        dim: the dimension that grows.
        fill: what a new place holds before it is written; None leaves it uninitialised.
    """

    def __init__(self, dim: int, fill: int | None = None) -> None:
        self.dim = dim
        self.fill = fill
        self.length = 0
        self._room = 0
        self._data: torch.Tensor | None = None

    def extend(self, length: int, like: torch.Tensor) -> torch.Tensor:
        """Make the tensor `length` long (never shorter) and return it; other sizes and dtype are those of `like`."""
        if length > self._room:
            self._grow(length, like)
        self.length = max(self.length, length)
        return self._data.narrow(self.dim, 0, self.length)

    def borrow(self, piece: torch.Tensor) -> None:
        """Begin with `piece` itself, until `own` copies it: meanwhile there is one of it."""
        self.length = self._room = piece.shape[self.dim]
        self._data = piece

    def own(self) -> None:
        """Copy what was borrowed, with room to spare."""
        piece, self._data, self.length, self._room = self._data, None, 0, 0
        self.append(piece)

    def append(self, piece: torch.Tensor) -> None:
        """Write `piece` behind what is there."""
        start, size = self.length, piece.shape[self.dim]
        self.length = start + size
        if self.length > self._room:
            self._grow(self.length, piece)
        self._data.narrow(self.dim, start, size).copy_(piece)

    def _grow(self, length: int, like: torch.Tensor) -> None:
        old, shape = self._data, list(like.shape)
        shape[self.dim] = self._room = length + (_SLACK if old is None else _GROWTH)
        # A tensor made in inference mode could not be written to outside of it, in a later step.
        with torch.inference_mode(False):
            self._data = like.new_empty(shape) if self.fill is None else like.new_full(shape, self.fill)
        if old is not None:
            self._data.narrow(self.dim, 0, old.shape[self.dim]).copy_(old)

    def to(self, device: torch.device) -> None:
        """Move the tensor to a device."""
        if self._data is not None:
            self._data = self._data.to(device)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to spare included."""
        return 0 if self._data is None else self._data.nbytes

    @property
    def view(self) -> torch.Tensor:
        """What has been written so far, as a view."""
        return self._data.narrow(self.dim, 0, self.length)
