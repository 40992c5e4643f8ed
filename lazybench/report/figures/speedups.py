"""The figures of single commands: the frontier of a calibration, and what `lazybench speed` measured."""

from pathlib import Path

import pandas as pd
from matplotlib.ticker import LogLocator

from lazybench.analysis.labels import title_of
from lazybench.report.figures import style
from lazybench.report.figures.style import PALE, around, canvas, finish, line, save

_BESIDE = 0.012  # of the axis: by how much lines stand apart, so that no interval hides another


def frontier(shown: pd.DataFrame, tried: pd.DataFrame, about: str, stem: Path) -> list[Path]:
    """Draw what `calibration.frontier.of_all` gives, a line a kind, and of `Study.tried` what was measured in full.

    `about` is as `style.about` gives it, and `stem` the files, PNG and PDF, which are returned, without their suffix.
    """
    tried = tried[tried["complete"]]
    with style.styled():
        figure = canvas(2.0)
        axes = figure.subplots()
        look = {"markersize": 3, "color": PALE, "label": "tried, on the records searched on"}
        axes.plot(tried["speedup"], tried["kl"], ".", **look)
        kinds = shown["kind"].unique()
        reach = shown["speedup"].max() - shown["speedup"].min() or 1.0
        for place, kind in enumerate(kinds):
            rows = shown[shown["kind"] == kind].sort_values("speedup")
            at = rows["speedup"] + _BESIDE * reach * (place - (len(kinds) - 1) / 2)
            axes.errorbar(at, rows["kl"], yerr=around(rows, "kl"), elinewidth=0.6, label=kind, **line(place))
        axes.set(xlabel="ideal speedup of whole answers (×)", ylabel="KL of the next token (nats)", yscale="log")
        axes.yaxis.set(minor_locator=LogLocator(subs=(2, 5)), major_formatter="{x:g}", minor_formatter="{x:g}")
        axes.set_xticks(shown["speedup"].unique())
        bars = ", 95% intervals" if shown["kl_low"].notna().any() else ""
        finish(figure, f"{about}; lines: n={style.span(shown['records'])} records held out{bars}")
        return save(figure, stem)


def speed(measured: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw what `speed.measures.measure` gives, a row a prompt length; `stem` and what is returned as above."""
    measured = measured.sort_values("tokens")
    tokens = measured["tokens"]
    first = measured.iloc[0]
    shown = {"ttft_speedup": "first token", "generation_speedup": f"answer of {first['new_tokens']} tokens"}
    with style.styled():
        figure = canvas(2.2)
        axes = figure.subplots()
        for place, (key, name) in enumerate(shown.items()):
            axes.errorbar(tokens, measured[key], yerr=around(measured, key), elinewidth=0.6, label=name, **line(place))
        if "ideal_speedup" in measured:
            axes.plot(
                tokens, measured["ideal_speedup"], label="first token, by the work that is left", **style.REFERENCE
            )
        axes.axhline(1, color=PALE, linewidth=0.6)
        axes.set_xscale("log", base=2)
        axes.set_xticks(tokens, [f"{of:,}" for of in tokens])
        axes.set(xlabel="prompt length (tokens)", ylabel="speedup over unmodified (×)", ylim=(0, None))
        axes.set_title(style.wrapped(f"{title_of(first['method'])} {first['setting']}".strip(), 50))
        ran_on = {"weights_format": first["weights"], "dtype": first["dtype"], "device": first["device"]}
        finish(figure, style.about(first["model"], [ran_on], [f"median and range of n={first['repeats']} repeats"]))
        return save(figure, stem)
