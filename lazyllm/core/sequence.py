"""One sequence of a generation: what a ranking may ask of it, and which of its tokens go on at a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.distributed import ProcessGroup

from lazyllm.core.attention import Kernel
from lazyllm.core.ranking import Selection, check_survivors
from lazyllm.core.schedule import PruningSchedule
from lazyllm.core.state import LayerGroup
from lazyllm.core.stats import Stats

if TYPE_CHECKING:
    from lazyllm.core.engine import Engine


@dataclass(frozen=True)
class Setup:
    """What all generations of a session have in common."""

    schedule: PruningSchedule
    kernel: Kernel
    windows: list[int | None]  # how many positions each layer's cache holds in the unmodified model; None means all
    processes: ProcessGroup | None  # those among which the model's heads are split; None means one process
    selection: Selection
    record_positions: bool
    record_importance: bool


class Sequence:
    """The tokens of one sequence, what ranks them, and the counts of it.

    Attributes:
        seen: positions of the steps before the one under way.
        new: positions that the step under way began with.
        prompt_length: tokens of the first pass, which is the prompt, or its first chunk.
        opening: tokens of all passes before the first one of a single token: what was given before any was generated.
        group_of: the layer group of each layer.
        values, sinks: while a ranking observes a layer, see `Selection`.
    """

    values: torch.Tensor | None = None
    sinks: torch.Tensor | None = None

    def __init__(self, engine: Engine, index: int) -> None:
        self._engine = engine
        self._index = index
        self.group_of = engine.group_of
        self.seen = self.new = self.prompt_length = self.opening = 0
        self.ranking = engine.setup.selection.copy_for(self)
        self.ranking.processes = engine.setup.processes
        self.stats = Stats(engine.groups, index, engine.setup.record_positions)

    @property
    def total(self) -> int:
        """Number of positions, the ones of the step under way included."""
        return self.seen + self.new

    @property
    def prefilling(self) -> bool:
        return self.seen == 0

    def begin_step(self, new: int) -> None:
        if self.prefilling:
            self.prompt_length = new
        self.new = new
        if self.opening == self.seen and (self.prefilling or new > 1):
            self.opening = self.total

    def positions(self, start: int = 0) -> torch.Tensor:
        """All positions from `start` on, int64, on the device of the layer under way."""
        return torch.arange(start, self.total, device=self._engine.device)

    def key_positions(self, group: LayerGroup) -> torch.Tensor:
        """Position of each key that attention gets, int64 (n_keys,)."""
        if group.index == 0:
            return self.positions()
        if group.gathered is not None:
            return group.active[self._index]
        return group.positions.data[self._index, : group.n_cached[self._index]]

    def rows(self, group: LayerGroup) -> torch.Tensor:
        """Positions computed in this step, sorted, int64 (n_rows,)."""
        if group.rows is None:
            return self.positions(self.seen)
        return group.rows.split(group.n_rows)[self._index]

    def active(self, group: LayerGroup) -> torch.Tensor:
        """Positions that take part in this step, sorted, int64 (n_active,)."""
        active = group.active[self._index]
        return self.positions() if active is None else active

    def present(self, group: LayerGroup) -> torch.Tensor | None:
        """Which keys take part in this step, bool (n_keys,); None means all of them."""
        keys = group.n_keys[self._index]
        if group.present is None or keys == group.n_active[self._index]:
            return None
        return group.present[self._index, :keys]

    def uncomputed(self, group: LayerGroup) -> torch.Tensor:
        """Which positions have no key and value behind the stage that ends `group`, bool (positions,)."""
        if self.prefilling:
            return torch.ones(self.total, dtype=torch.bool, device=self._engine.device)
        following = self._engine.groups[group.index + 1]
        following.to(self._engine.device)
        return following.slots.extend(self._engine.longest, following.slots.data)[self._index, : self.total] < 0

    def survivors(self, group: LayerGroup) -> torch.Tensor:
        """The positions that go on behind the stage that ends a group, sorted, int64 (k,)."""
        layer, count = group.layers[-1], group.stage.kept(group.n_active[self._index])
        survivors = self.ranking.survivors(layer, count)
        if self.ranking.checked:
            check_survivors(self.ranking, survivors, layer)
            survivors = survivors.clone()  # whatever becomes of the ranking's own tensor
        return survivors
