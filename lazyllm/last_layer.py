"""The last layer's shortcut: of most tokens only keys and values are needed there, so the newest go on alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lazyllm.layer_inputs import for_newest, newest_alone, with_hidden


class _Stored(Exception):
    """The keys and values are stored, which was all the layer was run for."""


class LastLayer:
    """Runs the last layer twice: all rows up to attention, which stores their keys and values, then the newest tokens.

    Attributes:
        alone: whether the newest token of each sequence is computed alone.
    """

    def __init__(self) -> None:
        self.alone = False
        self._storing = False

    def serves(self, layer: nn.Module) -> bool:
        """Whether the layer has no hooks, which are to see every row, once."""
        return not any(part._forward_hooks or part._forward_pre_hooks for part in layer.modules())

    def run(
        self,
        forward: Callable[..., Any],
        hidden: torch.Tensor,
        newest: torch.Tensor | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The layer's output for the newest tokens, of hidden states (1, rows, hidden).

        `newest` are their rows, int64 (sequences,); None stands for the last row.
        """
        self._storing = True
        try:
            forward(*args, **kwargs)
        except _Stored:
            pass
        finally:
            self._storing = False
        self.alone = True
        args, kwargs = with_hidden(newest_alone(hidden, 1, newest), args, for_newest(kwargs, newest))
        try:
            return forward(*args, **kwargs)
        finally:
            self.alone = False

    def attend(self) -> None:
        """Attention has been reached: end the first of the two runs."""
        if self._storing:
            raise _Stored


def widened(output: Any, tokens: int) -> Any:
    """A layer's output, or a tuple that begins with it, as (1, tokens, hidden); what was in it comes last."""
    if isinstance(output, torch.Tensor):
        missing = output[:, -1:].expand(-1, tokens - output.shape[1], -1)
        return torch.cat([missing, output], dim=1)
    return (widened(output[0], tokens), *output[1:])
