"""TTFT against prompt length."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lazybench.analysis.labels import title_of
from lazybench.report.figures import style
from lazybench.report.figures.footer import about


def save(measured: pd.DataFrame, table: Path) -> list[Path]:
    """Draw the measured times next to `table` as PNG and PDF.

    Returns:
        the two files.
    """
    with style.styled():
        figure = style.canvas(style.COLUMN, 2.1)
        axes = figure.subplots()
        measured = measured.sort_values("tokens")
        tokens = measured["tokens"]
        method, setting = measured["method"].iloc[0], measured["setting"].iloc[0]
        lines = [("unmodified", "ttft_s"), (f"{title_of(method)} {setting}".strip(), "method_ttft_s")]
        entries = {}
        for place, (label, column) in enumerate(lines):
            low, high = measured[f"{column}_low"], measured[f"{column}_high"]
            around = (measured[column] - low, high - measured[column])
            entries[label] = axes.errorbar(tokens, measured[column], yerr=around, elinewidth=0.6, **style.line(place))
        if "ideal_speedup" in measured:
            ideal = measured["ttft_s"] / measured["ideal_speedup"]
            (entries["time of the work that is left"],) = axes.plot(tokens, ideal, color=style.BLACK, linestyle=":")
        axes.set(xlabel="prompt length (tokens)", ylabel="TTFT (s)", ylim=(0, None))
        style.ticks_at(axes, tokens, "{:,.0f}")
        model, weights, dtype, device, repeats = (
            measured[key].iloc[0] for key in ("model", "weights", "dtype", "device", "repeats")
        )
        said = about(model, [weights], [dtype], [device], [f"median and range of n={repeats} repeats"])
        style.below(figure, said, entries)
        return style.save(figure, table.with_suffix(""))
