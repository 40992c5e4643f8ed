"""TTFT against prompt length."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lazybench.report.figures import style


def save(measured: pd.DataFrame, table: Path) -> list[Path]:
    """Draw the measured times next to `table` as PNG and PDF.

    Returns:
        the two files.
    """
    with style.styled():
        figure = style.canvas(3.6, 3.2)
        axes = figure.subplots()
        measured = measured.sort_values("tokens")
        tokens = measured["tokens"]
        lines = [("unmodified", "ttft_s"), (measured["method"].iloc[0], "method_ttft_s")]
        for place, (label, column) in enumerate(lines):
            low, high = measured[f"{column}_low"], measured[f"{column}_high"]
            around = (measured[column] - low, high - measured[column])
            axes.errorbar(tokens, measured[column], yerr=around, capsize=2, label=label, **style.line(place))
        if "ideal_speedup" in measured:
            ideal = measured["ttft_s"] / measured["ideal_speedup"]
            axes.plot(tokens, ideal, label="time of the work that is left", color=style.BLACK, linestyle=":")
        axes.set(xlabel="prompt length (tokens)", ylabel="TTFT (s)", ylim=(0, None), xticks=list(tokens))
        style.legend_outside(figure)
        return style.save(figure, table.with_suffix(""))
