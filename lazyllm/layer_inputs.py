"""What a decoder layer is told about each token besides its hidden state, for the rows it computes now."""

from __future__ import annotations

from typing import Any

import torch

from lazyllm.buffers import GrowingTensor
from lazyllm.errors import unsupported
from lazyllm.tokens import Segment, TokenCache

# The dimension that counts tokens: rotary tables are (batch, tokens, head_dim), position ids (batch, tokens).
_TOKEN_DIM = {"position_embeddings": -2, "position_ids": -1, "cache_position": -1, "per_layer_input": -2}
# What each layer is given of its own, (1, tokens, features), made for it alone.
_OWN = "per_layer_input"
# What the model makes and holds for the time of a pass.
_MADE = "position_embeddings"


class LayerInputs:
    """Gives the rows of later segments the rotary tables and position ids of their original positions.

    The model works these out for its input alone. Here they are kept as they were when each token first appeared.
    """

    def __init__(self, several: bool) -> None:
        # By sequence: the place of each of its positions among all tokens in order of arrival, int64 (positions,).
        # Where there is one sequence alone, a token's place is its position.
        self._places: dict[TokenCache, GrowingTensor] | None = {} if several else None
        self._unplaced: list[tuple[TokenCache, range]] = []
        self._arrived = 0
        self._now: list[TokenCache] = []
        self._rows: dict[int, torch.Tensor] = {}
        self._tables: dict[tuple[str, int], _Table] = {}
        self._first_with_table: set[int] = set()
        self._gathered: dict[tuple[int, int], Any] = {}
        self._step_objects: dict[int, _Table] = {}
        self._borrowed: list[_Table] = []

    def begin_step(self, sequences: list[TokenCache]) -> None:
        """Start a pass with new tokens of these sequences, one sequence after the other."""
        self._now = sequences
        self._rows.clear()
        self._gathered.clear()
        self._step_objects.clear()
        for tokens in sequences:
            self._unplaced.append((tokens, range(self._arrived, self._arrived + tokens.new)))
            self._arrived += tokens.new
        if self._places is None:
            self._unplaced.clear()

    def end_step(self) -> None:
        """Keep what the model made for the pass; a second copy before would be one more where memory is highest."""
        for table in self._borrowed:
            for part in table.parts:
                part.own()
        self._borrowed.clear()

    def stay(self, layer: int, segments: list[Segment]) -> bool:
        """Whether `layer` needs nothing done to its arguments in a decoding step."""
        return layer not in self._first_with_table and self._are_input(segments)

    def for_rows(self, layer: int, segments: list[Segment], kwargs: dict[str, Any]) -> dict[str, Any]:
        """`kwargs` of decoder layer `layer` with every per-token argument taken at the rows of its `segments`."""
        changed = {}
        for name, value in kwargs.items():
            if name == _OWN and segments[0].rows is None:
                continue  # never asked for again
            if name in _TOKEN_DIM and value is not None:
                table = self._table(name, layer, value)
                if not self._are_input(segments):
                    key = (id(table), segments[0].layers.start)
                    if key not in self._gathered:
                        self._gathered[key] = table.at(self._places_of_rows(segments))
                    changed[name] = self._gathered[key]
            elif isinstance(value, torch.Tensor) and name not in ("hidden_states", "attention_mask"):
                raise unsupported(f"the decoder layers take a tensor {name!r} that LazyLLM does not know how to prune")
        return {**kwargs, **changed} if changed else kwargs

    def _are_input(self, segments: list[Segment]) -> bool:
        """Whether the rows are the tokens that the model was given, which the newest always is among."""
        return segments[0].rows is None or all(
            tokens.new == segment.n_rows == 1 for tokens, segment in zip(self._now, segments, strict=True)
        )

    def _places_of_rows(self, segments: list[Segment]) -> torch.Tensor:
        if self._places is None:
            return segments[0].rows
        start = segments[0].layers.start
        if start not in self._rows:
            for tokens, arrived in self._unplaced:
                places = self._places.setdefault(tokens, GrowingTensor(0))
                places.append(torch.arange(arrived.start, arrived.stop, device=segments[0].rows.device))
            self._unplaced.clear()
            parts = [(self._places[tokens].view, part.rows) for tokens, part in zip(self._now, segments, strict=True)]
            self._rows[start] = torch.cat([places[rows.to(places.device)] for places, rows in parts])
        return self._rows[start]

    def _table(self, name: str, layer: int, value: Any) -> _Table:
        # Layers share a table when the model hands them the same object, as it does for each kind of layer.
        table = self._tables.get((name, layer))
        if table is None:
            table = None if name == _OWN else self._step_objects.get(id(value))
            if table is None:
                table = _Table(name)
                self._first_with_table.add(layer)
                if name == _MADE:
                    self._borrowed.append(table)
            self._tables[name, layer] = table
        if name != _OWN:  # another may be made where it was
            self._step_objects[id(value)] = table
        table.cover(value, self._arrived)
        return table


def with_hidden(hidden: torch.Tensor, args: tuple[Any, ...], kwargs: dict) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A layer's arguments with other hidden states, which are the first of `args` or one of `kwargs`."""
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})


def newest_alone(value: Any, dim: int, newest: torch.Tensor | None) -> Any:
    """A tensor, or a tuple of them, at the entries `newest` of the dimension that counts tokens; None: the last one."""
    if isinstance(value, tuple | list):
        return tuple(newest_alone(part, dim, newest) for part in value)
    if newest is None:
        return value.narrow(dim, value.shape[dim] - 1, 1)
    return value.index_select(dim, newest.to(value.device))


def for_newest(kwargs: dict[str, Any], newest: torch.Tensor | None) -> dict[str, Any]:
    """A layer's `kwargs` with every per-token argument cut down to the newest tokens'."""
    return {
        name: newest_alone(value, _TOKEN_DIM[name], newest) if name in _TOKEN_DIM and value is not None else value
        for name, value in kwargs.items()
    }


class _Table:
    """One per-token argument, a tensor or a tuple of tensors, for all positions so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_tuple = False
        self.parts: list[GrowingTensor] = []

    def cover(self, value: Any, arrived: int) -> None:
        """Append the entries of this step's input tokens, once a step, so that there are those of all that arrived."""
        length = self.parts[0].length if self.parts else 0
        if length == arrived:
            return
        self.is_tuple = isinstance(value, tuple | list)
        pieces = tuple(value) if self.is_tuple else (value,)
        dim = _TOKEN_DIM[self.name]
        for piece in pieces:
            if not isinstance(piece, torch.Tensor) or piece.shape[dim] != arrived - length:
                raise unsupported(f"the model's {self.name} are not one entry per token")
        begins = not self.parts
        if begins:
            self.parts = [GrowingTensor(dim) for _ in pieces]
        for part, piece in zip(self.parts, pieces, strict=True):
            if begins and self.name == _MADE:
                part.borrow(piece)
            else:
                part.append(piece)

    def at(self, positions: torch.Tensor) -> Any:
        taken = tuple(part.view.index_select(part.dim, positions.to(part.view.device)) for part in self.parts)
        return taken if self.is_tuple else taken[0]
