"""What LazyLLM computed in one generation."""

from typing import Any

import torch
from torch import Tensor

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.groups import LayerGroup
from lazyllm.core.schedule import PruningSchedule


class Stats:
    """Counts of one sequence's generation; a step is one forward pass, step 0 is prefilling.

    Attributes:
        prompt_length: tokens of the prompt, all its chunks included.
        schedule: the stages that prune.
        stages: the layers after which this generation prunes.
        positions: with `record_positions=True`, `positions[step][layer]` is the sorted active set, int64 (n,).
        computed: with `record_positions=True`, `computed[step][layer]` are the sorted positions whose keys and
            values were computed in that layer at that step, int64 (n,).
        protected: how many of its tokens always go on.
        exceeded: the layers after which those were more than the stage keeps, and so all that went on.
        importance: with `record_importance=True`, the newest token's mean attention probability on each active token in
            prefilling, (n,), of every layer that attends, in order.
    """

    def __init__(self, groups: list[LayerGroup], index: int) -> None:
        # The groups alone: a reference to the engine would keep all its keys and values alive.
        self._groups, self._index = groups, index
        self._rows: list[list[int]] = []
        self._active: list[list[int]] = []
        self._kv_bytes: list[list[int]] = []
        self._aux_bytes: list[int] = []
        self.prompt_length = self.protected = 0
        self.schedule = PruningSchedule(group.stage for group in groups[:-1])
        self.stages = [stage.layer for stage in self.schedule.stages]
        self.exceeded: set[int] = set()
        self.positions: list[list[Tensor]] = []
        self.computed: list[list[Tensor]] = []
        self.importance: list[Tensor] = []

    def add_step(self, prompt_length: int, kv_bytes: list[int], aux_bytes: int) -> None:
        """Add the counts of a finished forward pass."""
        self.prompt_length = prompt_length
        self._rows.append(self._by_layer([group.num_queries[self._index] for group in self._groups]))
        self._active.append(self._by_layer([group.num_active[self._index] for group in self._groups]))
        self._kv_bytes.append(kv_bytes)
        self._aux_bytes.append(aux_bytes)

    def _by_layer(self, by_group: list[Any]) -> list[Any]:
        """Repeat each group's value for its layers."""
        return [value for group, value in zip(self._groups, by_group, strict=True) for _ in group.layers]

    def _table(self, counts: list[list[int]]) -> Tensor:
        return torch.tensor(counts, dtype=torch.int64).reshape(-1, self._groups[-1].layers.stop)

    @property
    def steps(self) -> int:
        """Number of finished steps."""
        return len(self._rows)

    @property
    def rows(self) -> Tensor:
        """Tokens computed in each layer at each step, int64 (steps, layers)."""
        return self._table(self._rows)

    @property
    def active(self) -> Tensor:
        """Size of the active set of each layer at each step, int64 (steps, layers)."""
        return self._table(self._active)

    @property
    def kv_bytes(self) -> Tensor:
        """Bytes allocated for keys and values in each layer after each step, int64 (steps, layers).

        Tokens that have not been computed in a layer take none there; room for some tokens to come is counted.
        """
        return self._table(self._kv_bytes)

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
        if not self._rows:
            raise LazyLLMError("no step of this generation was finished, so nothing is known of its prompt")

        cached = [group.slots.data[self._index, : self.prompt_length] >= 0 for group in self._groups[1:]]
        fractions = self._by_layer([1.0, *(int(mask.sum()) / self.prompt_length for mask in cached)])
        return sum(fractions) / len(fractions)


def only(sequences: list[Stats]) -> Stats:
    """The counts where there is one sequence; `LazyLLMError` where there are several."""
    if len(sequences) > 1:
        raise LazyLLMError(f"{len(sequences)} sequences were generated at once: lazy.sequences[i] has the stats of one")
    return sequences[0]
