"""What is known of the tokens so far: active sets and slots group by group, and what a ranking may ask of them."""

import copy
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from lazyllm.core.attention import Kernel, MaskFunction
from lazyllm.core.ranking import Selection, check_survivors
from lazyllm.core.schedule import PruningSchedule, Stage
from lazyllm.core.stats import Stats

if TYPE_CHECKING:
    from lazyllm.core.engine import Engine

_SLACK = 128  # tokens of room to spare at first: prefilling holds little that it does not need
_GROWTH = 512  # tokens of room to spare when a buffer must grow later, so that decoding rarely reallocates


class GrowingTensor:
    """A tensor that grows along one dimension; elements once written keep their place."""

    def __init__(self, dim: int, count: int | None = None, fill: float | None = None) -> None:
        self.dim = dim  # the one that grows
        self.length = 0
        self._count = count  # size of the first dimension, as one entry a sequence; None takes that of what is written
        self._fill = fill  # what a new place holds before it is written; None leaves it uninitialised
        self._room = 0
        self.nbytes = 0  # allocated, room to spare included
        self.data: Tensor | None = None  # room to spare included

    def extend(self, length: int, like: Tensor) -> Tensor:
        """Make the tensor `length` long (never shorter) and return it; other sizes and dtype are those of `like`."""
        if length > self._room:
            old, shape = self.data, list(like.shape)
            shape[self.dim] = self._room = length + (_SLACK if old is None else _GROWTH)
            if self._count is not None:
                shape[0] = self._count
            # A tensor made in inference mode could not be written to outside of it, in a later step.
            with torch.inference_mode(False):
                self.data = like.new_empty(shape) if self._fill is None else like.new_full(shape, self._fill)
            self.nbytes = self.data.nbytes
            if old is not None:
                self.data.narrow(self.dim, 0, old.shape[self.dim]).copy_(old)
        self.length = max(self.length, length)
        return self.view

    @property
    def view(self) -> Tensor:
        """What has been written so far, as a view."""
        return self.data.narrow(self.dim, 0, self.length)


@dataclass
class LayerGroup:
    """The layers between two stages. All of them see the same tokens, so what holds for one holds for all.

    A token's key and value lie at the same slot in every layer of the group, in the order of their computation, for
    good; those that sit out a step are masked. The first group computes every token when it first appears: there,
    slot = position. Lists have an entry for each of the `count` sequences.
    """

    index: int
    layers: range  # the decoder layers of the group
    ranking: list[int]  # those that may rank: the last one, and all before it that see more than a window
    stage: Stage | None  # the one that ends it; None for the last group
    # Unused in the first group: slot of each position, int64 (count, positions), -1 where nothing was computed, and
    # position of each slot, int64 (count, slots).
    slots: GrowingTensor
    positions: GrowingTensor
    # How many tokens have keys and values here, take part in this step, and are computed in it.
    n_cached: list[int]
    n_active: list[int] = field(default_factory=list)
    n_rows: list[int] = field(default_factory=list)
    # The positions that take part in this step, sorted, int64 (n_active,) each; None means all of them.
    active: list[Tensor | None] = field(default_factory=list)
    # Positions computed in this step, sorted, those of one sequence after the other, and their slots, int64 (rows,).
    rows: Tensor | None = None
    row_slots: Tensor | None = None
    # The sequence of each row, int64 (rows,); None where there is one sequence.
    owners: Tensor | None = None
    # Which slots take part in this step, bool (count, slots); None means all of them.
    present: Tensor | None = None
    device: torch.device | None = None  # where all of these are

    def to(self, device: torch.device) -> None:
        """Move what says where the tokens are to the device of the layer that runs."""
        if device == self.device:
            return
        self.device = device
        for tensor in (self.slots, self.positions):
            if tensor.data is not None:
                tensor.data = tensor.data.to(device)
        for name in ("rows", "row_slots", "owners", "present"):
            if (part := getattr(self, name)) is not None:
                setattr(self, name, part.to(device))
        self.active = [None if part is None else part.to(device) for part in self.active]


def partition(schedule: PruningSchedule, windows: list[int | None], count: int) -> list[LayerGroup]:
    """Cut the layers into groups, for `count` sequences; a stage that keeps everything cuts nothing."""
    groups, start = [], 0
    for index, stage in enumerate([*schedule.pruning, None]):
        layers = range(start, len(windows) if stage is None else stage.layer + 1)
        ranking = [layer for layer in layers if windows[layer] is None or layer == layers[-1]]
        places = GrowingTensor(1, count, fill=-1), GrowingTensor(1, count, fill=0)
        groups.append(LayerGroup(index, layers, ranking, stage, *places, [0] * count))
        start = layers.stop
    return groups


@dataclass(frozen=True)
class Setup:
    """What all generations of a session have in common."""

    schedule: PruningSchedule
    kernel: Kernel
    windows: list[int | None]  # how many positions each layer's cache holds in the unmodified model; None means all
    processes: ProcessGroup | None  # those among which the model's heads are split; None means one process
    selection: Selection
    min_tokens: int  # prompts of fewer tokens are not pruned
    record_positions: bool
    record_importance: bool


class Sequence:
    """The tokens of one sequence, what ranks them, and the counts of it."""

    window: MaskFunction | None = None  # while a ranking observes a layer, whom a query sees in it

    def __init__(self, engine: "Engine", index: int) -> None:
        # The engine holds its sequences; they do not hold it, so that its keys and values go as soon as it does.
        self._engine: Engine = weakref.proxy(engine)
        self.index = index  # its place in the batch
        self.group_of = engine.group_of  # the layer group of each layer
        self.seen = 0  # positions of the steps before the one under way
        self.new = 0  # positions that the step under way began with
        # Tokens of all chunks of the prompt, and of all passes behind them before the first one of a single token: what
        # was given before any was generated.
        self.prompt_length = 0
        self.short = False  # whether its prompt is too short to be pruned
        self.protected = torch.empty(0, dtype=torch.int64)  # the positions that always go on, sorted, (n,), on the CPU
        self._protected_on: dict[torch.device, Tensor] = {}  # the same elsewhere
        engine.setup.selection.check()  # a setting may have changed since `enable`
        self.ranking = copy.deepcopy(engine.setup.selection)
        self.ranking.cache, self.ranking.processes = self, engine.setup.processes
        self.revives = self.ranking.revives and not self.ranking.for_good  # whether what is left behind may come back
        self.stats = Stats(engine.groups, index, engine.setup.record_positions)

    @property
    def total(self) -> int:
        """Number of positions, the ones of the step under way included."""
        return self.seen + self.new

    @property
    def prefilling(self) -> bool:
        return self.seen == 0

    @property
    def n_active(self) -> int:
        """How many positions take part in the layers under way."""
        return self._engine.group.n_active[self.index]

    def positions(self, start: int = 0) -> Tensor:
        """All positions from `start` on, int64, on the device of the layer under way."""
        return torch.arange(start, self.total, device=self._engine.group.device)

    def key_positions(self, group: LayerGroup) -> Tensor:
        """Position of each key that attention gets, int64 (n_keys,)."""
        if group.index == 0:
            return self.positions()
        return group.positions.data[self.index, : group.n_cached[self.index]]

    def rows(self, group: LayerGroup) -> Tensor:
        """Positions computed in this step, sorted, int64 (n_rows,)."""
        return group.rows.split(group.n_rows)[self.index]

    def active(self, group: LayerGroup) -> Tensor:
        """Positions that take part in this step, sorted, int64 (n_active,)."""
        active = group.active[self.index]
        return self.positions() if active is None else active

    def present(self, group: LayerGroup) -> Tensor | None:
        """Which keys take part in this step, bool (n_keys,); None means all of them."""
        keys = group.n_cached[self.index]
        if group.present is None or keys == group.n_active[self.index]:
            return None
        return group.present[self.index, :keys]

    def uncomputed(self, group: LayerGroup) -> Tensor:
        """Which positions have no key and value behind the stage that ends `group`, bool (positions,)."""
        if self.prefilling:
            return torch.ones(self.total, dtype=torch.bool, device=self._engine.group.device)
        following = self._engine.groups[group.index + 1]
        following.to(self._engine.group.device)
        return following.slots.extend(self._engine.longest, following.slots.data)[self.index, : self.total] < 0

    def protect(self, positions: Tensor) -> None:
        """Have these always go on, sorted, int64 (n,) on the CPU."""
        self.protected, self.stats.protected = positions, len(positions)
        self._protected_on.clear()

    def protected_on(self, device: torch.device) -> Tensor:
        """The protected positions on a device, copied there once."""
        if device not in self._protected_on:
            self._protected_on[device] = self.protected.to(device)
        return self._protected_on[device]

    def survivors(self, group: LayerGroup) -> Tensor:
        """The positions that go on behind the stage that ends a group, sorted, int64 (k,)."""
        layer, active = group.layers[-1], group.n_active[self.index]
        if self.ranking.for_good and not self.prefilling:
            # All that has keys there goes on, and lies in order of position.
            kept = self.key_positions(self._engine.groups[group.index + 1])
            return torch.cat([kept, self.positions(self.seen).to(kept.device)])
        count = active if self.short else group.stage.kept(active)
        stay = len(self.protected)
        if stay and self.total - 1 not in self.protected:
            stay += 1  # the newest always goes on, too
        if count < stay:
            self.stats.exceeded.add(layer)
            count = stay
        self.ranking.protects = False
        survivors = self.ranking.survivors(layer, count)
        if self.ranking.checked:
            check_survivors(self.ranking, survivors, layer)
            survivors = survivors.clone()  # whatever becomes of the ranking's own tensor
        if len(self.protected) and (self.ranking.checked or not self.ranking.protects):
            survivors = torch.cat([survivors, self.protected_on(survivors.device)]).unique()
        return survivors
