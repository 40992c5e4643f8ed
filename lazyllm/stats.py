"""What LazyLLM computed in one generation."""

from __future__ import annotations

import torch

from lazyllm.cache import LazyCache


class Stats:
    """Counts of one generation; a step is one forward pass, step 0 is prefilling.

    Attributes:
        positions: with `record_positions=True`, `positions[step][layer]` is the sorted active set, int64 (n,).
        computed: with `record_positions=True`, `computed[step][layer]` are the sorted positions whose keys and
            values were computed in that layer at that step, int64 (n,).
        importance: with `record_importance=True`, `importance[layer]` is the newest token's mean attention
            probability on each active token in prefilling, (n,).
    """

    def __init__(self, cache: LazyCache, record_positions: bool) -> None:
        self._cache = cache
        self._record_positions = record_positions
        self._rows: list[list[int]] = []
        self._active: list[list[int]] = []
        self.positions: list[list[torch.Tensor]] = []
        self.computed: list[list[torch.Tensor]] = []
        self.importance: list[torch.Tensor] = []

    def add_step(self) -> None:
        """Take the counts of the forward pass that has just gone through all layers."""
        cache = self._cache
        self._rows.append([segment.n_rows for segment in cache.segment_of])
        self._active.append([segment.n_active for segment in cache.segment_of])
        if self._record_positions:
            everything = torch.arange(cache.total)
            active, computed = [], []
            for segment in cache.segments:
                taking_part = everything if segment.active is None else segment.active.cpu()
                rows = everything[cache.seen :] if segment.rows is None else segment.rows.cpu()
                active += [taking_part] * len(segment.layers)
                computed += [rows] * len(segment.layers)
            self.positions.append(active)
            self.computed.append(computed)

    @property
    def prompt_length(self) -> int:
        """Tokens in the prompt."""
        return self._cache.prompt_length

    @property
    def rows(self) -> torch.Tensor:
        """Tokens computed in each layer at each step, int64 (steps, layers)."""
        return torch.tensor(self._rows)

    @property
    def active(self) -> torch.Tensor:
        """Size of the active set of each layer at each step, int64 (steps, layers)."""
        return torch.tensor(self._active)

    @property
    def stages(self) -> list[int]:
        """The layers after which this generation pruned."""
        return [segment.layers[-1] for segment in self._cache.segments[:-1]]

    @property
    def prompt_computed(self) -> float:
        """Mean over layers of the fraction of prompt tokens computed there so far, in (0, 1] (paper, Table 2)."""
        return self._cache.prompt_fraction_computed()
