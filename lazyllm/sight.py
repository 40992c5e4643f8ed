"""Whom the rows of a step attend to, the same in all layers between two stages."""

from __future__ import annotations

from functools import cached_property

import torch

from lazyllm.tokens import Segment, TokenCache

# The stored keys that sit a step out are masked, or the others copied together: a copy of one key and value takes as
# long as attending to so many in vain, measured on a CPU.
_COPY = 8


class Sight:
    """Whom the rows of a segment attend to at one step, on one device.

    Attributes:
        rows: positions of the rows, int64 (rows,).
        keys: positions of the keys, int64 (n,).
        present: which of the keys take part, bool (n,); None means all of them.
    """

    def __init__(self, tokens: TokenCache, segment: Segment) -> None:
        self._of = segment.layers, tokens.device
        self._slots: torch.Tensor | None = None
        self.rows, self.keys, self.present = tokens.rows(segment), tokens.held(segment), segment.present
        in_vain = segment.n_rows * (segment.stored - segment.n_active)
        if self.present is not None and in_vain > _COPY * segment.n_active:
            self._slots = segment.slots.view.index_select(0, segment.active)
            self.keys, self.present = segment.active, None

    def serves(self, tokens: TokenCache, segment: Segment) -> bool:
        """Whether it is that of a segment on the device of the layer under way."""
        return self._of == (segment.layers, tokens.device)

    def of(self, stored: torch.Tensor) -> torch.Tensor:
        """The keys, or values, (1, kv_heads, n, width), of all that are stored."""
        return stored if self._slots is None else stored.index_select(2, self._slots)

    @cached_property
    def mask(self) -> torch.Tensor:
        """Which keys each row sees, bool (rows, n)."""
        seen = self.keys <= self.rows[:, None]
        return seen if self.present is None else seen & self.present
