"""Figures of a report (the paper's, KL by speedup), and the figure of `speed`.

Each function draws a figure from the numbers of a block, or of all blocks, and counts the records that `captions.yaml`
calls `{n}`. It returns None if there would be nothing to see: no two rows with the numbers of both axes, no score that
differs from the unmodified model's, no traced attention, or no method that revives tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from lazybench.analysis import labels
from lazybench.analysis.averages import ANSWER, GEOMETRIC_KL, MEAN, SCORE_DIFFERENCE, TTFT
from lazybench.analysis.blocks import Block
from lazybench.analysis.intervals import rounded
from lazybench.analysis.numbers import numbers, overall, wide
from lazybench.analysis.records import KEY
from lazybench.analysis.trace_means import BINS
from lazybench.report import paper
from lazybench.report.figures import style
from lazybench.report.figures.style import REFERENCE, canvas, error_bars, finish, in_rows, line_style, panels, wrapped

_KL_LABEL = "KL, geometric mean (nats)"
_SIZES = 3, 5.5  # of the markers of a method's least and greatest strength (points)
Styles = Mapping[str, Mapping[str, Any]]  # by method
Drawn = tuple[Figure, str] | None  # a figure, and its caption's `{n}`


def speed_against_kl(blocks: Sequence[Block], values: Sequence[pd.DataFrame], styles: Styles) -> Drawn:
    """Plot KL against the speedup of the whole answer, a panel per block; a KL of 0 has no mark."""
    keys = [ANSWER.key, GEOMETRIC_KL.key, TTFT.key]
    parts = [wide(overall(own[own["method"] != "baseline"]), keys) for own in values]
    parts = [part[part[GEOMETRIC_KL.key] > 0] for part in parts]
    pairs = [(block, part) for block, part in zip(blocks, parts, strict=True) if len(part) > 1]
    if not pairs:
        return None
    titles = [block.model_title for block, _ in pairs]
    if len({*titles}) < len(titles):
        titles = [f"{block.title}, {block.conditions}" for block, _ in pairs]
    layout = in_rows(titles)
    figure, grid = panels(layout, 2.4, "speedup of the whole answer (×)", _KL_LABEL, sharex=True, sharey=True)
    for axes, (_, points) in zip(grid.values(), pairs, strict=True):
        axes.axvline(1, **REFERENCE)
        _lines(axes, points, ANSWER.key, GEOMETRIC_KL.key, styles)
        _log_kl(axes)
    counts = [
        f"{block.title}, {block.conditions}: KL over {style.span(points[f'{GEOMETRIC_KL.key}_records'])} records, "
        f"times over {style.span(points[f'{ANSWER.key}_records'])}"
        for block, points in pairs
    ]
    return finish(figure, _entries(pd.concat([points for _, points in pairs]), styles)), "; ".join(counts)


def _lines(axes: Axes, points: pd.DataFrame, x: str, y: str, styles: Styles) -> None:
    """Draw a line per method through its rows, with markers that grow with the speedup of the first token."""
    for method, line in points.sort_values(TTFT.key).groupby("method"):
        error_bars(axes, line, x, y, **styles[method] | {"marker": "none"})
        for size, across, up in zip(np.linspace(*_SIZES, len(line)), line[x], line[y], strict=True):
            axes.plot(across, up, **styles[method] | {"markersize": size, "linestyle": "none", "zorder": 3})


def _entries(points: pd.DataFrame, styles: Styles) -> dict[str, Any]:
    """Return the legend of methods, in the order of the styles."""
    titles = dict(zip(points["method"], points["line"], strict=True))
    methods = {titles[method]: Line2D([], [], **options) for method, options in styles.items() if method in titles}
    return methods | {"unmodified": Line2D([], [], **REFERENCE)}


def _log_kl(axes: Axes) -> None:
    major = LogLocator(10, subs=(1, 2, 5))
    axes.set_yscale("log")
    axes.yaxis.set(major_locator=major, minor_locator=NullLocator(), major_formatter="{x:g}")


def figure1(block: Block, values: pd.DataFrame, styles: Styles) -> Drawn:
    """Draw a bar per task, one for all tasks, and the paper's; ratios of means over timed records."""
    bars: dict[str, tuple[float, float]] = {}  # TTFT's share (%), and TTFT over a decode step
    times = [f"unmodified_{key}" for key in ("ttft_s", "generation_s", "decode_step_s")]
    records = block.records.dropna(subset=times[:2]).drop_duplicates(KEY)
    sections = {labels.title_of(task, "task"): names for task, names in block.tasks(block.rows).items()}
    if len(sections) > 1:
        sections["All records"] = [*records["dataset"].unique()]
    for name, datasets in sections.items():
        part = records[records["dataset"].isin(datasets)]
        if len(part):
            # An answer of one token has no decode step.
            ttft, generation, step = part[times].mean()
            bars[f"{name}, n={len(part)}"] = rounded(100 * ttft / generation), rounded(ttft / step)
    if not bars:
        return None
    bars["paper: Llama 2 7B, A100"] = paper.figure1()
    names, shares = [wrapped(name, 26) for name in bars], np.array([share for share, _ in bars.values()])
    y = [*range(len(bars) - 1), len(bars) - 0.7]  # a gap before the paper's bar
    figure = canvas(max(1.3, 0.6 + len(bars) * (0.19 + 0.12 * max(name.count("\n") for name in names))))
    axes = figure.add_subplot()
    axes.barh(y, shares, height=0.7, color=style.BLUE, label="first token (prefill)")
    hatched = {"color": style.ORANGE, "hatch": "////", "edgecolor": "white", "linewidth": 0}
    axes.barh(y, 100 - shares, height=0.7, left=shares, label="decoding", **hatched)
    axes.set(xlim=(0, 100), ylim=(y[-1] + 0.5, -0.5), xlabel="generation time (%)")
    axes.set_yticks(y, names)
    for height, (share, ratio) in zip(y, bars.values(), strict=True):
        axes.text(101, height, f"{share:.0f}%" + (f", {ratio:.0f}×" if ratio > 0 else ""), va="center")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    return finish(figure), f"{len(records)} timed records"


def figure2(block: Block, values: pd.DataFrame, styles: Styles) -> Drawn:
    """Draw attention by layer and position, and its share on the top tokens; means over all traced records."""
    traced = [run.traces["attention"] for run in block.runs if "attention" in run.traces]
    if not traced:
        return None
    heat, mean, low, high = (_mean(traced, key) for key in ("map", "mean", "low", "high"))
    figure = canvas(3.1)
    upper, lower = figure.subplots(2, 1)
    least = max(heat[heat > 0].min(initial=1.0), heat.max() * 1e-4)
    extent = (0, 100, -0.5, len(heat) - 0.5)
    options = {"aspect": "auto", "origin": "lower", "interpolation": "nearest", "cmap": "cividis", "extent": extent}
    image = upper.imshow(np.maximum(heat, least), norm=LogNorm(least, heat.max()), **options)
    upper.grid(visible=False)
    upper.set(xlabel="position in the prompt (%)", ylabel="layer")
    figure.colorbar(image, ax=upper, format="{x:g}", label=f"attention on\n{100 // BINS}% of the prompt")
    top = np.arange(101)
    if len(traced) == 1:  # those of several runs have no common percentiles
        lower.fill_between(top, 100 * low, 100 * high, color=style.BLUE, alpha=0.25, linewidth=0)
    lower.plot(top, 100 * mean, color=style.BLUE)
    lower.plot(top, top, **REFERENCE)
    lower.set(xlabel="top tokens of the prompt (%)", ylabel="attention they hold (%)", xlim=(0, 100), ylim=(0, 101))
    return figure, f"{sum(trace['records'] for trace in traced)} records"


def _mean(traces: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Average arrays of several runs' traces over their records; shorter arrays keep their last values."""
    arrays = [np.array(trace[key]) for trace in traces]
    length = max(array.shape[-1] for array in arrays)
    padded = [
        np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])], mode="edge") for array in arrays
    ]
    return np.average(padded, axis=0, weights=[trace["records"] for trace in traces]).round(6)


def figure5(block: Block, values: pd.DataFrame, styles: Styles) -> Drawn:
    """Plot the score less the unmodified model's against the speedup of the first token: macro-average, then tasks."""
    points = wide(values[values["method"] != "baseline"], [TTFT.key, SCORE_DIFFERENCE.key])
    if points["name"].nunique() < 2 or not points[SCORE_DIFFERENCE.key].any():
        return None
    tasks = [points[points["task"] == task] for task in dict.fromkeys([MEAN, *points["task"]])]
    parts = {part["title"].iloc[0]: part for part in tasks if len(part)}
    first, *others = parts
    layout = [[first, first, *row] for row in in_rows(others, -(-len(others) // 2))] if others else [[first]]
    height = 1.5 if len(layout) > 1 else 2.2
    figure, grid = panels(layout, height, "speedup of the first token (×)", "score difference (points)", sharex=True)
    grid[first].xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))  # for narrow panels
    for title, part in parts.items():
        grid[title].axhline(0, **REFERENCE)
        _lines(grid[title], part, TTFT.key, SCORE_DIFFERENCE.key, styles)
        if title in others[1:]:
            grid[title].sharey(grid[others[0]])
    counts = [f"{title} {style.span(part[f'{SCORE_DIFFERENCE.key}_records'])}" for title, part in parts.items()]
    return finish(figure, _entries(points, styles)), ", ".join(counts)


def figure6(block: Block, values: pd.DataFrame, styles: Styles) -> Drawn:
    """Plot KL against the layer of the stage, of schedules of a single stage, a line per keep."""
    stages = {row.name: labels.stages(row.runs[0]) for row in block.rows if row.method == "lazyllm"}
    rows = [row for row in block.rows if len(stages.get(row.name, ())) == 1]
    by_depth = {stages[row.name][0][0].endswith("%") for row in rows}
    if len(by_depth) != 1:  # layers by number and by depth have no common axis
        return None
    points = wide(overall(numbers(block, rows)), [GEOMETRIC_KL.key])
    layers, keeps = ([stages[name][0][part] for name in points["name"]] for part in (0, 1))
    if len({*layers}) < 2:
        return None
    points = points.assign(layer=[float(layer.removesuffix("%")) for layer in layers], keep=keeps)
    xlabel = "depth of the stage (%)" if True in by_depth else "layer of the stage"
    figure, grid = panels([[""]], 1.9, xlabel, _KL_LABEL)
    for number, keep in enumerate(sorted({*keeps}, reverse=True)):
        line = points[points["keep"] == keep].sort_values("layer")
        line["layer"] *= 1 + number / 100  # so that no bar hides another
        options = line_style(number) | {"color": styles["lazyllm"]["color"]}
        error_bars(grid[""], line, "layer", GEOMETRIC_KL.key, label=f"keep {keep:g}", **options)
    grid[""].set_xticks(points["layer"].unique())
    _log_kl(grid[""])
    return finish(figure), f"{style.span(points[f'{GEOMETRIC_KL.key}_records'])} records"


def figure7(block: Block, values: pd.DataFrame, styles: Styles) -> Drawn:
    """Plot the tokens used by step, a panel per row that revives tokens; its runs must prune after the same layers."""
    traced = []
    for row in block.compared:
        traces = [run.traces for run in row.runs if "computed" in run.traces]
        revives = any(len({*stage}) > 1 for trace in traces for stage in trace["computed"]["mean"])
        if revives and len({tuple(trace["layers"]) for trace in traces}) == 1:
            living = pd.DataFrame([trace["computed"]["living"] for trace in traces]).sum().astype(int)
            traced.append((row, traces, living[living > living[0] / 2]))
    if not traced:
        return None
    layout = in_rows([row.name for row, *_ in traced])
    figure, grid = panels(layout, 1.6, "generation step", "prompt tokens used (%)", sharex=True, sharey=True)
    for row, traces, counts in traced:
        computed, color, axes = [trace["computed"] for trace in traces], styles[row.method]["color"], grid[row.name]
        mean, low, high = (100 * _mean(computed, key)[:, : len(counts)] for key in ("mean", "low", "high"))
        axes.axhline(100, **REFERENCE)
        for stage, layer in enumerate(traces[0]["layers"]):
            if len(computed) == 1:  # those of several runs have no common percentiles
                axes.fill_between(counts.index, low[stage], high[stage], color=color, alpha=0.2, linewidth=0)
            axes.plot(mean[stage], color=color)
            axes.text(counts.index[-1], mean[stage, -1] + 2, f"after layer {layer}", ha="right")
        axes.set_ylim(0, 104)
    ends = [f"{row.name} {counts[0]} records, {counts.iloc[-1]} at the last step" for row, _, counts in traced]
    return figure, "; ".join(ends)


def speed_by_length(speeds: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw the table of `lazybench speed` as `stem` in PNG and PDF, and return both files."""
    first, tokens = speeds.iloc[0], speeds["tokens"]
    titles = {"ttft_speedup": "first token", "generation_speedup": f"answer of {first['new_tokens']} tokens"}
    with style.styled():
        figure = canvas(2.6)
        axes = figure.subplots()
        for number, (key, name) in enumerate(titles.items()):
            error_bars(axes, speeds, "tokens", key, elinewidth=0.6, label=name, **line_style(number))
        axes.axhline(1, color=style.PALE, linewidth=0.6)
        axes.set_xscale("log", base=2)
        axes.set_xticks(tokens, [f"{number:,}" for number in tokens])
        axes.set(xlabel="prompt length (tokens)", ylabel="speedup over unmodified (×)", ylim=(0, None))
        model = f"{labels.title_of(first['model'], 'model')} ({first['weights']}, in {first['dtype']})"
        method = f"{labels.title_of(first['method'])} {first['setting']}".strip()
        repeats = f"median and range of n={first['repeats']} repeats"
        axes.set_title(wrapped(f"{method} on {model}; {repeats}; {first['device']}", 46))  # over the axes
        finish(figure)
        return style.save(figure, stem)


# In the order of a report's page.
FIGURES = (figure5, figure7, figure1, figure2, figure6)
