"""What a decoder layer is told about each token besides its hidden state, for the rows it computes now."""

from __future__ import annotations

from typing import Any

import torch

from lazyllm.buffers import GrowingTensor
from lazyllm.errors import unsupported
from lazyllm.tokens import Segment, TokenCache

# The dimension that counts tokens: rotary tables are (batch, tokens, head_dim), position ids (batch, tokens).
_TOKEN_DIM = {"position_embeddings": -2, "position_ids": -1, "cache_position": -1}


class LayerInputs:
    """Gives the rows of later segments the rotary tables and position ids of their original positions.

    The model works these out for its input alone. Here they are kept as they were when each token first appeared.
    """

    def __init__(self, cache: TokenCache) -> None:
        self._cache = cache
        self._tables: dict[tuple[str, int], _Table] = {}
        self._first_with_table: set[int] = set()
        self._gathered: dict[tuple[int, int], Any] = {}
        self._step_objects: dict[int, _Table] = {}

    def begin_step(self) -> None:
        self._gathered.clear()
        self._step_objects.clear()

    def stay(self, layer: int, segment: Segment) -> bool:
        """Whether `layer` needs nothing done to its arguments in a decoding step."""
        return layer not in self._first_with_table and (segment.rows is None or segment.n_rows == 1)

    def for_rows(self, layer: int, segment: Segment, kwargs: dict[str, Any]) -> dict[str, Any]:
        """`kwargs` of decoder layer `layer` with every per-token argument taken at the segment's rows."""
        changed = {}
        for name, value in kwargs.items():
            if name in _TOKEN_DIM and value is not None:
                table = self._table(name, layer, value)
                # The newest token is always a row, so a decode step with a single row computes just the model's input.
                alone = not self._cache.prefilling and segment.n_rows == 1
                if segment.rows is not None and not alone:
                    key = (id(table), segment.layers.start)
                    if key not in self._gathered:
                        self._gathered[key] = table.at(segment.rows)
                    changed[name] = self._gathered[key]
            elif isinstance(value, torch.Tensor) and name not in ("hidden_states", "attention_mask"):
                raise unsupported(f"the decoder layers take a tensor {name!r} that LazyLLM does not know how to prune")
        return {**kwargs, **changed} if changed else kwargs

    def _table(self, name: str, layer: int, value: Any) -> _Table:
        # Layers share a table when the model hands them the same object, as it does for each kind of layer.
        table = self._tables.get((name, layer))
        if table is None:
            table = self._step_objects.get(id(value))
            if table is None:
                table = _Table(name)
                self._first_with_table.add(layer)
            self._tables[name, layer] = table
        self._step_objects[id(value)] = table
        table.cover(value, self._cache)
        return table


def with_hidden(hidden: torch.Tensor, args: tuple[Any, ...], kwargs: dict) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A layer's arguments with other hidden states, which are the first of `args` or one of `kwargs`."""
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})


def newest_alone(kwargs: dict[str, Any]) -> dict[str, Any]:
    """A layer's `kwargs` with every per-token argument cut down to its last entry."""

    def last(value: Any, dim: int) -> Any:
        if isinstance(value, tuple | list):
            return tuple(last(part, dim) for part in value)
        return value.narrow(dim, value.shape[dim] - 1, 1)

    return {
        name: last(value, _TOKEN_DIM[name]) if name in _TOKEN_DIM and value is not None else value
        for name, value in kwargs.items()
    }


class _Table:
    """One per-token argument, a tensor or a tuple of tensors, for all positions so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_tuple = False
        self.parts: list[GrowingTensor] = []

    def cover(self, value: Any, cache: TokenCache) -> None:
        """Append the entries of this step's input tokens, once a step."""
        if self.parts and self.parts[0].length == cache.total:
            return
        self.is_tuple = isinstance(value, tuple | list)
        pieces = tuple(value) if self.is_tuple else (value,)
        dim = _TOKEN_DIM[self.name]
        for piece in pieces:
            if not isinstance(piece, torch.Tensor) or piece.shape[dim] != cache.new:
                raise unsupported(f"the model's {self.name} are not one entry per token")
        if not self.parts:
            self.parts = [GrowingTensor(dim) for _ in pieces]
        for part, piece in zip(self.parts, pieces, strict=True):
            part.append(piece)

    def at(self, positions: torch.Tensor) -> Any:
        taken = tuple(part.view.index_select(part.dim, positions) for part in self.parts)
        return taken if self.is_tuple else taken[0]
