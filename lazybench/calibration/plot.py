"""The frontier: harm against speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.ticker import LogLocator

from lazybench.calibration.found import CALIBRATED, DEPTH, KEEPS
from lazybench.report.figures import style

# Speedup by which kinds stand apart.
_BESIDE = 0.01


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
            low, high = (rows[end].astype(float) for end in ("kl_low", "kl_high"))  # empty where there is none
            around = (rows["kl"] - low, high - rows["kl"])
            beside = _BESIDE * (place - 1)  # or one kind's interval hides another's
            axes.errorbar(rows["speedup"] + beside, rows["kl"], yerr=around, capsize=2, label=kind, **style.line(place))
        axes.set(xlabel="ideal TTFT speedup (×)", ylabel="KL of the next token (nats)", yscale="log")
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        for show in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            show("{x:g}")
        figure.suptitle(f"{title}\nlines: records held out; bars: 95% intervals", fontsize=9)
        style.legend_outside(figure)
        return style.save(figure, stem)
