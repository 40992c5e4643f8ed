"""The figure of `lazybench speed`: speedups by prompt length."""

from pathlib import Path

import pandas as pd

from lazybench.analysis.labels import model_title, title_of
from lazybench.report.figures import style


def speed(measured: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw what `speed.measure.measure` returns, a row a prompt length, and return the files: `stem`, PNG and PDF."""
    measured = measured.sort_values("tokens")
    first, tokens = measured.iloc[0], measured["tokens"]
    labels = {"ttft_speedup": "first token", "generation_speedup": f"answer of {first['new_tokens']} tokens"}
    with style.styled():
        figure = style.canvas(2.2)
        axes = figure.subplots()
        for number, (key, name) in enumerate(labels.items()):
            style.error_bars(axes, measured, "tokens", key, elinewidth=0.6, label=name, **style.line_style(number))
        if "ideal_speedup" in measured:
            ideal = "first token, by the work that is left"
            axes.plot(tokens, measured["ideal_speedup"], label=ideal, **style.REFERENCE)
        axes.axhline(1, color=style.PALE, linewidth=0.6)
        axes.set_xscale("log", base=2)
        axes.set_xticks(tokens, [f"{number:,}" for number in tokens])
        axes.set(xlabel="prompt length (tokens)", ylabel="speedup over unmodified (×)", ylim=(0, None))
        axes.set_title(style.wrapped(f"{title_of(first['method'])} {first['setting']}".strip(), 50))
        model = f"{model_title(first['model'])} ({first['weights']} weights, in {first['dtype']})"
        repeats = f"median and range of n={first['repeats']} repeats"
        style.finish(figure, f"{model}; {repeats}; {first['device']}")
        return style.save(figure, stem)
