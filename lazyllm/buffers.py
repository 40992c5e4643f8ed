"""Tensors that grow by one token or many without being copied at every step."""

from __future__ import annotations

import torch

_SLACK = 128  # tokens of room to spare when a buffer must grow, so that decoding rarely reallocates


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
        self._data: torch.Tensor | None = None

    def extend(self, length: int, like: torch.Tensor) -> torch.Tensor:
        """Make the tensor `length` long (never shorter) and return it; other sizes and dtype are those of `like`."""
        data = self._data
        if data is None or data.shape[self.dim] < length:
            shape = list(like.shape)
            shape[self.dim] = length + _SLACK
            grown = like.new_empty(shape) if self.fill is None else like.new_full(shape, self.fill)
            if data is not None:
                grown.narrow(self.dim, 0, self.length).copy_(data.narrow(self.dim, 0, self.length))
            self._data = data = grown
        self.length = max(self.length, length)
        return data.narrow(self.dim, 0, self.length)

    def append(self, piece: torch.Tensor) -> torch.Tensor:
        """Write `piece` behind what is there and return the whole as a view."""
        start, size = self.length, piece.shape[self.dim]
        whole = self.extend(start + size, piece)
        whole.narrow(self.dim, start, size).copy_(piece)
        return whole

    @property
    def view(self) -> torch.Tensor:
        """What has been written so far, as a view."""
        return self._data.narrow(self.dim, 0, self.length)
