"""Counts of what LazyLLM computed in one generation."""

import torch
from torch import Tensor

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.groups import LayerGroup
from lazyllm.core.schedule import PruningSchedule


class Stats:
    """Counts of one sequence's generation; a step is one forward pass, step 0 is prefill.

    Attributes:
        prompt_length: tokens of the prompt, all its chunks included.
        schedule: the stages that prune.
        stages: the layers after which this generation prunes.
        steps: number of finished steps.
        positions: with `record_positions=True`, `positions[step][layer]` is the sorted active set, int64 (n,).
        computed: with `record_positions=True`, `computed[step][layer]` are the sorted positions whose keys and
            values were computed in that layer at that step, int64 (n,).
        protected: number of protected tokens.
        exceeded: the layers after which a stage kept all protected tokens, although they are more than it keeps.
        importance: with `record_importance=True`, the newest token's mean attention probability on each active token in
            prefill, (n,), of every layer that attends, in order.
    """

    def __init__(self, groups: list[LayerGroup], index: int) -> None:
        # The groups alone: a reference to the engine would keep all its keys and values alive.
        self._groups, self._index = groups, index
        self._rows: list[list[int]] = []  # by step and group, as the next
        self._active: list[list[int]] = []
        self._kv_bytes: list[list[int]] = []  # by step and layer
        self._aux_bytes: list[int] = []  # by step
        self.prompt_length = self.protected = self.steps = 0
        self.schedule = PruningSchedule(group.stage for group in groups[:-1])
        self.stages = [stage.layer for stage in self.schedule.stages]
        self.exceeded: set[int] = set()
        self.positions: list[list[Tensor]] = []
        self.computed: list[list[Tensor]] = []
        self.importance: list[Tensor] = []

    def add_step(self, prompt_length: int, kv_bytes: list[int], aux_bytes: int) -> None:
        """Add the counts of a finished forward pass."""
        self.prompt_length = prompt_length
        self.steps += 1
        self._rows.append([group.num_queries[self._index] for group in self._groups])
        self._active.append([group.num_active[self._index] for group in self._groups])
        self._kv_bytes.append(kv_bytes)
        self._aux_bytes.append(aux_bytes)

    @property
    def rows(self) -> Tensor:
        """Tokens computed in each layer at each step, int64 (steps, layers)."""
        return self._by_layer(self._rows)

    @property
    def active(self) -> Tensor:
        """Size of the active set of each layer at each step, int64 (steps, layers)."""
        return self._by_layer(self._active)

    @property
    def kv_bytes(self) -> Tensor:
        """Bytes allocated for keys and values in each layer after each step, int64 (steps, layers).

        They are allocated for the tokens computed in a layer, with spare room for later ones.
        """
        num_layers = sum(len(group.layers) for group in self._groups)
        return torch.tensor(self._kv_bytes, dtype=torch.int64).reshape(-1, num_layers)

    @property
    def aux_bytes(self) -> Tensor:
        """Bytes allocated for the Aux Cache after each step, int64 (steps,)."""
        return torch.tensor(self._aux_bytes, dtype=torch.int64)

    @property
    def prompt_computed(self) -> float:
        """Mean over layers of the fraction of prompt tokens that have keys and values there (paper, Table 2).

        Raises:
            LazyLLMError: no step has been finished.
        """
        if not self.steps:
            raise LazyLLMError("no step of this generation was finished, so nothing is known of its prompt")
        cached = [group.slots.data[self._index, : self.prompt_length] >= 0 for group in self._groups[1:]]
        fractions = [1.0, *(int(mask.sum()) / self.prompt_length for mask in cached)]
        by_layer = [part for part, group in zip(fractions, self._groups, strict=True) for _ in group.layers]
        return sum(by_layer) / len(by_layer)

    def _by_layer(self, by_group: list[list[int]]) -> Tensor:
        """Return counts of each group at each step as a table, int64 (steps, layers)."""
        sizes = torch.tensor([len(group.layers) for group in self._groups])
        return torch.tensor(by_group, dtype=torch.int64).reshape(-1, len(sizes)).repeat_interleave(sizes, dim=1)


def only(sequences: list[Stats]) -> Stats:
    """Return the counts of the only sequence; raise `LazyLLMError` if there are several."""
    if len(sequences) > 1:
        raise LazyLLMError(f"{len(sequences)} sequences were generated at once: lazy.sequences[i] has the stats of one")
    return sequences[0]
