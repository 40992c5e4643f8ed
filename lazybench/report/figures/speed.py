"""Speedup against prompt length: what `lazybench speed` measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lazybench.analysis.labels import title_of
from lazybench.report.figures.style import (
    PALE,
    REFERENCE,
    about,
    around,
    canvas,
    finish,
    line,
    save,
    styled,
    wrapped,
)


def write(measured: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw what `speed.measures.measure` gives, a row a prompt length, as PNG and PDF; returns the two files.

    `stem` is the files without their suffix.
    """
    measured = measured.sort_values("tokens")
    tokens = measured["tokens"]
    first = measured.iloc[0]
    shown = {"ttft_speedup": "first token", "generation_speedup": f"answer of {first['new_tokens']} tokens"}
    with styled():
        figure = canvas(2.2)
        axes = figure.subplots()
        for place, (key, name) in enumerate(shown.items()):
            bars = around(measured, key)
            axes.errorbar(tokens, measured[key], yerr=bars, elinewidth=0.6, label=name, **line(place))
        if "ideal_speedup" in measured:
            axes.plot(tokens, measured["ideal_speedup"], label="first token, by the work that is left", **REFERENCE)
        axes.axhline(1, color=PALE, linewidth=0.6)
        axes.set_xscale("log", base=2)
        axes.set_xticks(tokens, [f"{of:,}" for of in tokens])
        axes.set(xlabel="prompt length (tokens)", ylabel="speedup over unmodified (×)", ylim=(0, None))
        axes.set_title(wrapped(f"{title_of(first['method'])} {first['setting']}".strip(), 50))
        ran_on = {"weights_format": first["weights"], "dtype": first["dtype"], "device": first["device"]}
        finish(figure, about(first["model"], [ran_on], [f"median and range of n={first['repeats']} repeats"]))
        return save(figure, stem)
