"""The frontier of a calibration: the harm of what was found, and of what it is compared with, against speed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.ticker import LogLocator

from lazybench.report.figures.style import PALE, around, canvas, finish, line, save, span, styled

_BESIDE = 0.012  # of the axis: by how much lines stand apart, so that no interval hides another


def write(frontier: pd.DataFrame, tried: pd.DataFrame, about: str, stem: Path) -> list[Path]:
    """Draw what `calibration.frontier.table` gives, a line a kind, and of `Study.tried` what was measured in full.

    `about` is as `style.about` gives it, and `stem` the files, PNG and PDF, which are returned, without their suffix.
    """
    together = frontier[frontier["half"] == "cross"]
    shown = frontier if together.empty else together
    tried = tried[tried["complete"]]
    with styled():
        figure = canvas(2.0)
        axes = figure.subplots()
        look = {"markersize": 3, "color": PALE, "label": "tried, on the records searched on"}
        axes.plot(tried["speedup"], tried["kl"], ".", **look)
        kinds = shown["kind"].unique()
        reach = shown["speedup"].max() - shown["speedup"].min() or 1.0
        for place, kind in enumerate(kinds):
            rows = shown[shown["kind"] == kind].sort_values("speedup")
            at = rows["speedup"] + _BESIDE * reach * (place - (len(kinds) - 1) / 2)
            bars = around(rows, "kl")
            axes.errorbar(at, rows["kl"], yerr=bars, elinewidth=0.6, label=kind, **line(place))
        axes.set(xlabel="ideal speedup of whole answers (×)", ylabel="KL of the next token (nats)", yscale="log")
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        for show in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            show("{x:g}")
        axes.set_xticks(shown["speedup"].unique())
        bars = ", 95% intervals" if shown["kl_low"].notna().any() else ""
        finish(figure, f"{about}; lines: n={span(shown['records'])} records held out{bars}")
        return save(figure, stem)
