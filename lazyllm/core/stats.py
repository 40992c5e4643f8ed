"""What LazyLLM computed in one generation."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lazyllm.core.errors import LazyLLMError
from lazyllm.core.schedule import PruningSchedule

if TYPE_CHECKING:
    from lazyllm.core.state import LayerGroup, Sequence


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

    def __init__(self, groups: "list[LayerGroup]", index: int, record_positions: bool) -> None:
        # The groups alone: holding on to the engine would keep all its keys and values alive.
        self._groups, self._index, self._record_positions = groups, index, record_positions
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

    def add_step(self, sequence: "Sequence", kv_bytes: list[int], aux_bytes: int) -> None:
        """Take the counts of the forward pass that has just gone through all layers."""
        self.prompt_length = sequence.prompt_length
        self._rows.append(self._by_layer(lambda group: group.n_rows[self._index]))
        self._active.append(self._by_layer(lambda group: group.n_active[self._index]))
        self._kv_bytes.append(kv_bytes)
        self._aux_bytes.append(aux_bytes)
        if self._record_positions:
            self.positions.append(self._by_layer(lambda group: sequence.active(group).cpu()))
            self.computed.append(self._by_layer(lambda group: sequence.rows(group).cpu()))

    def _by_layer(self, of: "Callable[[LayerGroup], Any]") -> list[Any]:
        """What holds for the group of each layer."""
        return [found for group in self._groups for found in [of(group)] * len(group.layers)]

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

        def fraction(group: "LayerGroup") -> float:
            if group.index == 0:
                return 1.0
            return int((group.slots.data[self._index, : self.prompt_length] >= 0).sum()) / self.prompt_length

        by_layer = self._by_layer(fraction)
        return sum(by_layer) / len(by_layer)


def only(sequences: list[Stats]) -> Stats:
    """The counts where there is one sequence; `LazyLLMError` where there are several."""
    if len(sequences) > 1:
        raise LazyLLMError(f"{len(sequences)} sequences were generated at once: lazy.sequences[i] has the stats of one")
    return sequences[0]
