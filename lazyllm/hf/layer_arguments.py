"""The arguments of a decoder layer besides its input: rotary tables and position ids of the tokens it computes."""

from collections.abc import Callable
from typing import Any

import torch

from lazyllm.core.errors import unsupported
from lazyllm.core.kv_cache import GrowingTensor, LayerGroup
from lazyllm.hf.arguments import arguments_by_name

# The dimension that counts tokens: rotary tables are (batch, tokens, head_dim), position ids (batch, tokens).
_TOKEN_DIM = {"position_embeddings": -2, "position_ids": -1, "cache_position": -1, "per_layer_input": -2}
_TOKEN_DIM["original_hidden_states"] = -2  # Zamba's embeddings, which each of its shared blocks reads again


class LayerArguments:
    """Select the rotary tables and position ids of the tokens that each layer computes.

    The model makes these only for a pass's new tokens; those of all tokens so far are kept here.
    """

    def __init__(self, batch_size: int) -> None:
        self._first: LayerGroup  # the first group, which computes every token
        # Index of each position among all tokens in order of arrival, int64 (batch, positions). With one sequence it is
        # the position, and without a stage it is not needed.
        self._arrival = GrowingTensor(1, batch_size) if batch_size > 1 else None
        self._tables: dict[tuple[str, int], _PerTokenTable] = {}  # by argument and layer
        self._making: set[int] = set()  # layers that were the first to pass a table; later ones share it

    def begin_step(self, groups: list[LayerGroup]) -> None:
        """Note the order in which the new tokens of a pass arrive."""
        self._first = groups[0]
        if self._arrival is not None and len(groups) > 1:
            new, end = self._first.queries, sum(self._first.num_cached)
            arrival = self._arrival.extend(self._first.end, new.positions[None])
            arrival[new.batch_index, new.positions] = torch.arange(end - sum(new.counts), end, device=arrival.device)

    def select(
        self, layer: int, group: LayerGroup, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a layer's arguments, each per-token one only for the positions that its group computes."""
        if not group.is_prefill and layer not in self._making and self._computes_input(group):
            return args, kwargs
        if any(isinstance(value, torch.Tensor) for value in args[1:]):
            _, *named = arguments_by_name(forward, args, kwargs).items()
            args, kwargs = args[:1], dict(named)
        selected = {}
        for name, value in kwargs.items():
            if name == "per_layer_input" and group.index == 0:
                continue  # each layer's own, (1, tokens, features): never needed again
            if name in _TOKEN_DIM and value is not None:
                table = self._table(name, layer, value)
                if not self._computes_input(group):
                    if group.index not in table.selected:
                        table.selected[group.index] = table.at(self._arrival_of(group))
                    selected[name] = table.selected[group.index]
            elif isinstance(value, torch.Tensor) and name != "attention_mask":
                raise unsupported(f"the decoder layers take a tensor {name!r}, whose meaning is unknown")
        return args, {**kwargs, **selected}

    def _computes_input(self, group: LayerGroup) -> bool:
        """Return whether the group computes exactly the pass's new tokens."""
        counts = group.queries.counts
        return group.index == 0 or (counts == self._first.queries.counts and max(counts) == 1)

    def _arrival_of(self, group: LayerGroup) -> torch.Tensor:
        if self._arrival is None:
            return group.queries.positions
        arrival = self._arrival.view
        queries = group.queries.to(arrival.device)
        return arrival[queries.batch_index, queries.positions]

    def _table(self, name: str, layer: int, value: Any) -> "_PerTokenTable":
        if (name, layer) not in self._tables:
            # Layers share a table when the model hands them the same object, as it does for each kind of layer.
            shared = next((table for table in self._tables.values() if table.source is value), None)
            if shared is None:
                self._making.add(layer)
            self._tables[name, layer] = shared or _PerTokenTable(name)
        self._tables[name, layer].append(value, sum(self._first.num_cached))
        return self._tables[name, layer]


class _PerTokenTable:
    """One per-token argument, a tensor or a tuple of tensors of one shape, for all tokens so far."""

    def __init__(self, name: str) -> None:
        self.selected: dict[int, Any] = {}  # entries of the tokens that a group computes in this step
        self.source: Any = None  # what the model made for this step
        self._name, self._dim, self._is_tuple = name, _TOKEN_DIM[name], False
        self._entries = GrowingTensor(self._dim)  # (parts, ...)

    def append(self, value: Any, num_arrived: int) -> None:
        """Append the entries of this step's new tokens, once per step."""
        num_new = num_arrived - self._entries.length
        if num_new == 0:
            return
        self.selected.clear()
        self.source, self._is_tuple = value, isinstance(value, tuple | list)
        parts = value if self._is_tuple else [value]
        for part in parts:
            is_tensor = isinstance(part, torch.Tensor) and part.shape == parts[0].shape
            if not is_tensor or part.shape[self._dim] != num_new:
                raise unsupported(f"the model's {self._name} are not one entry per token")
        entries = self._entries.extend(num_arrived, parts[0].expand(len(parts), *parts[0].shape))
        for index, part in enumerate(parts):
            entries[index].narrow(self._dim, num_arrived - num_new, num_new).copy_(part)

    def at(self, arrival: torch.Tensor) -> Any:
        """Return the entries of tokens, int64 (n,) in order of arrival."""
        parts = self._entries.view.index_select(self._dim, arrival.to(self._entries.data.device)).unbind()
        return parts if self._is_tuple else parts[0]
