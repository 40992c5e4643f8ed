"""The figures: each draws a block's runs, or says what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure as Drawing

from lazybench.report.blocks import Block
from lazybench.report.figures import figure1, figure2, figure5, figure6, figure7


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, made from runs.

    Attributes:
        name: stem of its files.
        caption: what it shows.
        draw: draws a block's runs; None where they lack what it shows.
        needs: what must be run for it, as words of a command.
    """

    name: str
    caption: str
    draw: Callable[[Block], Drawing | None]
    needs: str


FIGURES = tuple(
    Figure(module.__name__.rpartition(".")[2], module.CAPTION, module.draw, module.NEEDS)
    for module in (figure1, figure2, figure5, figure6, figure7)
)
