"""Watches what a model does, operation by operation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Watch(TorchDispatchMode):
    """Largest tensor seen, largest tensor newly made, and how often the device was asked for a value."""

    SYNCHRONISING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.largest = 0
        self.largest_made = 0
        self.synchronisations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))}
        for tensor in tensors(result):
            elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            self.largest = max(self.largest, elements)
            if tensor.untyped_storage().data_ptr() not in given:
                self.largest_made = max(self.largest_made, elements)
        name = function.overloadpacket.__name__
        indexes = args[1] if name == "index" else ()
        self.synchronisations += name in self.SYNCHRONISING or any(
            index is not None and index.dtype == torch.bool for index in indexes
        )
        return result


def tensors(nested: object) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor))
