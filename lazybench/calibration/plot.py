"""The frontier: harm against speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.ticker import LogLocator

from lazybench.calibration.found import CALIBRATED, DEPTH, KEEPS
from lazybench.report.figures import style


def save(frontier: pd.DataFrame, tried: pd.DataFrame, title: str, stem: Path) -> Sequence[Path]:
    """Draw what was found, the scaled reference, and every candidate that was measured in full.

    Args:
        frontier: what `found.table` gives.
        tried: `speedup` and `kl` of the candidates.
        title: the figure's title.
        stem: the files' path without a suffix.

    Returns:
        the PNG and the PDF.
    """
    together = frontier[frontier["half"] == "cross"]
    shown = frontier if together.empty else together
    with style.styled():
        figure = style.canvas(4.4, 3.6)
        axes = figure.subplots()
        axes.plot(
            tried["speedup"], tried["kl"], ".", color="#bbbbbb", label="tried, on the records searched on", zorder=1
        )
        for place, kind in enumerate((CALIBRATED, KEEPS, DEPTH)):
            rows = shown[shown["kind"] == kind].sort_values("speedup")
            if rows.empty:
                continue
            around = None
            if rows["kl_low"].notna().all():
                around = (rows["kl"] - rows["kl_low"], rows["kl_high"] - rows["kl"])
            axes.errorbar(rows["speedup"], rows["kl"], yerr=around, capsize=2, label=kind, **style.line(place))
        axes.set(xlabel="ideal TTFT speedup (×)", ylabel="KL of the next token (nats)", yscale="log")
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        for show in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            show("{x:g}")
        figure.suptitle(f"{title}; lines: records held out", fontsize=9)
        style.legend_outside(figure)
        return style.save(figure, stem)
