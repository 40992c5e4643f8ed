"""What a decoder layer is told about each token besides its hidden state, for the rows it computes now."""

from typing import Any

import torch

from lazyllm.core.state import GrowingTensor, LayerGroup
from lazyllm.hf.refusals import refusal, refuse_if

# The dimension that counts tokens: rotary tables are (batch, tokens, head_dim), position ids (batch, tokens).
_TOKEN_DIM = {"position_embeddings": -2, "position_ids": -1, "cache_position": -1, "per_layer_input": -2}
_TOKEN_DIM["original_hidden_states"] = -2  # Zamba's embeddings, which each of its shared blocks sees again


class LayerArguments:
    """Gives the rows of later groups the rotary tables and position ids of their original positions.

    The model works these out for its input alone. Here they are kept as they were when each token first appeared.
    """

    def __init__(self, count: int) -> None:
        # The place of each position among all tokens in order of arrival, int64 (count, positions). Where there is one
        # sequence, a token's place is its position.
        self._places = None if count == 1 else GrowingTensor(1, count)
        self._arrived = 0
        self._new: list[int] = []
        self._tables: dict[tuple[str, int], _Table] = {}  # by argument and layer
        self._leading: set[int] = set()  # the layers that are the first ones with a table

    def begin_step(self, new: list[int], first: LayerGroup, prunes: bool) -> None:
        """Start a pass with new tokens of each sequence, those that the first group computes."""
        self._new = new
        start, self._arrived = self._arrived, self._arrived + sum(new)
        if self._places is not None and prunes:
            places = self._places.extend(max(first.n_cached), first.rows[None])
            places[first.owners, first.rows] = torch.arange(start, self._arrived, device=places.device)

    def stay(self, layer: int, group: LayerGroup) -> bool:
        """Whether `layer` needs nothing done to its arguments in a decoding step."""
        return layer not in self._leading and self._are_input(group)

    def for_rows(self, layer: int, group: LayerGroup, kwargs: dict[str, Any]) -> dict[str, Any]:
        """`kwargs` of decoder layer `layer` with every per-token argument taken at the rows of its `group`."""
        changed = {}
        for name, value in kwargs.items():
            if name == "per_layer_input" and group.index == 0:
                continue  # each layer's own, (1, tokens, features): never asked for again
            if name in _TOKEN_DIM and value is not None:
                table = self._table(name, layer, value)
                if self._are_input(group):
                    continue
                if group.index not in table.taken:
                    places = group.rows
                    if self._places is not None:
                        places = self._places.view
                        places = places[group.owners.to(places.device), group.rows.to(places.device)]
                    table.taken[group.index] = table.at(places)
                changed[name] = table.taken[group.index]
            elif isinstance(value, torch.Tensor) and name not in ("hidden_states", "attention_mask"):
                raise refusal("architecture", what=f"the decoder layers take a tensor {name!r}, of no known meaning")
        return {**kwargs, **changed} if changed else kwargs

    def _are_input(self, group: LayerGroup) -> bool:
        """Whether the rows are the tokens that the model was given, which the newest always is among."""
        return group.index == 0 or (group.n_rows == self._new and max(self._new) == 1)

    def _table(self, name: str, layer: int, value: Any) -> "_Table":
        if (name, layer) not in self._tables:
            # Layers share a table when the model hands them the same object, as it does for each kind of layer.
            shared = [table for table in self._tables.values() if table.made_of is value]
            if not shared:
                self._leading.add(layer)
            self._tables[name, layer] = shared[0] if shared else _Table(name)
        self._tables[name, layer].cover(value, self._arrived)
        return self._tables[name, layer]


class _Table:
    """One per-token argument, a tensor or a tuple of tensors of one shape, for all tokens so far."""

    def __init__(self, name: str) -> None:
        self._name, self._dim, self._is_tuple = name, _TOKEN_DIM[name], False
        self._kept = GrowingTensor(self._dim)  # (parts, ...)
        self.taken: dict[int, Any] = {}  # in this step, for the rows of a group
        self.made_of: Any = None  # what the model made for this step

    def cover(self, value: Any, arrived: int) -> None:
        """Append the entries of this step's input tokens, once a step."""
        new = arrived - self._kept.length
        if new == 0:
            return
        self.taken.clear()
        self.made_of = value
        self._is_tuple = isinstance(value, tuple | list)
        parts = value if self._is_tuple else [value]
        for part in parts:
            fits = isinstance(part, torch.Tensor) and part.shape[self._dim] == new and part.shape == parts[0].shape
            refuse_if(not fits, "architecture", what=f"the model's {self._name} are not one entry a token")
        kept = self._kept.extend(arrived, parts[0].expand(len(parts), *parts[0].shape))
        for place, part in enumerate(parts):
            kept[place].narrow(self._dim, arrived - new, new).copy_(part)

    def at(self, places: torch.Tensor) -> Any:
        """The entries of these tokens, int64 (rows,)."""
        taken = self._kept.view.index_select(self._dim, places.to(self._kept.data.device)).unbind()
        return taken if self._is_tuple else taken[0]
