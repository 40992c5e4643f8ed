"""Which sequences of a batch have ended, while others go on."""

from __future__ import annotations

from typing import Any

import torch
from transformers import StoppingCriteriaList


class Ended(StoppingCriteriaList):
    """The stopping criteria of a call of `generate`, which remember whom they stopped."""

    def __init__(self, criteria: StoppingCriteriaList) -> None:
        super().__init__(criteria)
        self._done: torch.Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        done = super().__call__(*args, **kwargs)
        self._done = done if self._done is None else self._done | done
        return done

    def flags(self, count: int) -> list[bool]:
        """Whether each of `count` sequences has ended."""
        # An only sequence ends its `generate`.
        known = count > 1 and self._done is not None and len(self._done) == count
        return self._done.tolist() if known else [False] * count
