"""Figures of a report (the paper's, KL by speedup), and the figure of `speed`.

The functions in `FIGURES` draw a figure of a block from its numbers, and return None if it lacks the runs for it.
`captions.yaml` has the captions.
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
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from lazybench.analysis import labels
from lazybench.analysis.averages import ANSWER, GEOMETRIC_KL, MEAN, SCORE_DIFFERENCE, TTFT
from lazybench.analysis.blocks import Block, pruned
from lazybench.analysis.intervals import rounded
from lazybench.analysis.numbers import numbers, overall, wide
from lazybench.analysis.records import KEY
from lazybench.analysis.trace_means import BINS
from lazybench.report import paper
from lazybench.report.figures import style
from lazybench.report.figures.style import REFERENCE, canvas, error_bars, finish, line_style, panels, wrapped

_FEW = 30  # records of a task
_KL_LABEL = "KL (nats)"
Styles = Mapping[str, Mapping[str, Any]]  # by method


def line_styles(blocks: Sequence[Block]) -> Styles:
    """Return the style of each method's line, the same in all figures of a report."""
    lines = dict.fromkeys(row.title for block in blocks for row in pruned(block.rows))
    return {line: line_style(number) for number, line in enumerate(lines)}


def speed_against_kl(blocks: Sequence[Block], values: Sequence[pd.DataFrame], styles: Styles) -> Figure | None:
    """Plot KL against the speedup of the whole answer, a panel per block; a KL of 0 has no mark."""
    parts = {}
    for block, own in zip(blocks, values, strict=True):
        points = wide(overall(own[own["method"] != "baseline"]), [ANSWER.key, GEOMETRIC_KL.key])
        points = points[points[GEOMETRIC_KL.key] > 0]
        if len(points) > 1:
            title = block.title if len({other.data for other in blocks}) > 1 else block.model_title
            parts[f"{title}, {block.conditions}" if title in parts else title] = points
    if not parts:
        return None
    figure, grid = panels([*parts], 1.9, "speedup of the whole answer (×)", _KL_LABEL, sharex=True, sharey=True)
    for axes, points in zip(grid, parts.values(), strict=True):
        _lines(axes, points, ANSWER.key, GEOMETRIC_KL.key, styles)
        _log_kl(axes)
    left, right = grid[0].get_xlim()
    grid[0].set(xlim=(min(1.0, left), right + 0.1))  # no mark is cut
    return finish(figure)


def _lines(axes: Axes, points: pd.DataFrame, x: str, y: str, styles: Styles) -> None:
    """Draw a line per method through its rows."""
    for name, line in points.groupby("line", sort=False):
        error_bars(axes, line.sort_values(x), x, y, label=name, **styles[name])


def _log_kl(axes: Axes) -> None:
    major = LogLocator(10, subs=(1, 2, 5))
    axes.set_yscale("log")
    axes.yaxis.set(major_locator=major, minor_locator=NullLocator(), major_formatter="{x:g}")


def figure1(block: Block, values: pd.DataFrame, styles: Styles) -> Figure | None:
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
    return finish(figure)


def figure2(block: Block, values: pd.DataFrame, styles: Styles) -> Figure | None:
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
    top, blue = np.arange(101), {"color": style.BLUE}
    if len(traced) == 1:  # those of several runs have no common percentiles
        lower.fill_between(top, 100 * low, 100 * high, alpha=0.25, linewidth=0, label="10th–90th percentile", **blue)
    lower.plot(top, 100 * mean, label=f"mean of n={sum(trace['records'] for trace in traced)} records", **blue)
    lower.plot(top, top, color=style.VERMILLION, linestyle=":", label="all tokens alike")
    lower.set(xlabel="top tokens of the prompt (%)", ylabel="attention they hold (%)", xlim=(0, 100), ylim=(0, 101))
    return finish(figure)


def _mean(traces: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Average arrays of several runs' traces over their records; shorter arrays keep their last values."""
    arrays = [np.array(trace[key]) for trace in traces]
    length = max(array.shape[-1] for array in arrays)
    padded = [
        np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])], mode="edge") for array in arrays
    ]
    return np.average(padded, axis=0, weights=[trace["records"] for trace in traces]).round(6)


def figure5(block: Block, values: pd.DataFrame, styles: Styles) -> Figure | None:
    """Plot the score less the unmodified model's against the speedup of the first token.

    The first panel is the mean over tasks. If a task has fewer than `_FEW` records, only the three tasks with the most
    records follow.
    """
    points = wide(values[values["method"] != "baseline"], [TTFT.key, SCORE_DIFFERENCE.key])
    if points["name"].nunique() < 2:
        return None
    sizes = points.groupby("task", sort=False)[f"{SCORE_DIFFERENCE.key}_records"].max()
    sizes = sizes.sort_values(ascending=False, kind="stable")  # the mean over tasks has all records
    shown = [*sizes.index[: 4 if (sizes < _FEW).any() else None]]
    tasks = [task for task in dict.fromkeys([MEAN, *points["task"]]) if task in shown]
    parts = [points[points["task"] == task] for task in tasks]
    titles = [f"{part['title'].iloc[0]}, n={style.span(part[f'{SCORE_DIFFERENCE.key}_records'])}" for part in parts]
    figure, grid = panels(titles, 1.4, "speedup of the first token (×)", "score difference (points)", sharex=True)
    for axes, part in zip(grid, parts, strict=True):
        axes.axhline(0, label="unmodified", **REFERENCE)
        _lines(axes, part, TTFT.key, SCORE_DIFFERENCE.key, styles)
    return finish(figure)


def figure6(block: Block, values: pd.DataFrame, styles: Styles) -> Figure | None:
    """Plot KL against the layer that prunes, of schedules of a single stage, a line per keep."""
    stages = {row.name: labels.stages(row.runs[0]) for row in block.rows if row.method == "lazyllm"}
    rows = [row for row in block.rows if len(stages.get(row.name, ())) == 1]
    by_depth = {stages[row.name][0][0].endswith("%") for row in rows}
    if len(by_depth) != 1:  # layers by number and by depth have no common axis
        return None
    points = wide(overall(numbers(block, rows)), [GEOMETRIC_KL.key])
    if len(points) < 2:
        return None
    own = [stages[name][0] for name in points["name"]]
    points["tick"], points["keep"] = [float(layer.removesuffix("%")) for layer, _ in own], [keep for _, keep in own]
    points["line"] = points["keep"].map("keep {:g}".format)
    points = points.sort_values("keep", ascending=False)
    shift = points.groupby("line", sort=False).ngroup() / 100  # of each line, so that no bar hides another
    points["layer"] = points["tick"] * (1 + shift)
    figure, (axes,) = panels([""], 1.9, f"{'depth (%)' if True in by_depth else 'layer'} that prunes", _KL_LABEL)
    _lines(
        axes, points, "layer", GEOMETRIC_KL.key, {line: line_style(n) for n, line in enumerate(points["line"].unique())}
    )
    axes.set_xticks(points["tick"].unique())
    _log_kl(axes)
    return finish(figure)


def figure7(block: Block, values: pd.DataFrame, styles: Styles) -> Figure | None:
    """Draw a panel per traced row; rows whose runs prune after different layers are left out."""
    traced = []
    for row in block.rows:
        traces = [run.traces for run in row.runs if "computed" in run.traces]
        if len({tuple(trace["layers"]) for trace in traces}) == 1:
            traced.append((row, traces))
    reviving = [(row, traces) for row, traces in traced if any(map(_revives, traces))]
    traced = reviving or traced
    if not traced:
        return None
    layers = sorted({layer for _, traces in traced for layer in traces[0]["layers"]})
    layer_styles = {layer: line_style(number) for number, layer in enumerate(layers)}
    living = [_living(traces) for _, traces in traced]
    titles = [f"{row.label}, n={style.span(counts)}" for (row, _), counts in zip(traced, living, strict=True)]
    figure, grid = panels(titles, 1.3, "generation step", "prompt tokens used (%)", sharex=True, sharey=True)
    for axes, (_, traces), counts in zip(grid, traced, living, strict=True):
        computed, num_steps = [trace["computed"] for trace in traces], len(counts)
        mean, low, high = (100 * _mean(computed, key)[:, :num_steps] for key in ("mean", "low", "high"))
        axes.axhline(100, **REFERENCE)
        for stage, layer in enumerate(traces[0]["layers"]):
            spread = {"color": layer_styles[layer]["color"], "alpha": 0.2, "linewidth": 0}
            if len(computed) == 1:  # those of several runs have no common percentiles
                axes.fill_between(range(num_steps), low[stage], high[stage], **spread)
            axes.plot(mean[stage], markevery=max(1, num_steps // 4), **layer_styles[layer])
        axes.set_ylim(0, 104)
    entries: dict[str, Any] = {"before any stage": Line2D([], [], **REFERENCE)}
    entries |= {f"after layer {layer}": Line2D([], [], **options) for layer, options in layer_styles.items()}
    entries["10th–90th percentile"] = Patch(color=style.GREY, alpha=0.3, linewidth=0)
    return finish(figure, entries)


def _revives(trace: Mapping[str, Any]) -> bool:
    """Return whether pruned tokens are revived: a stage's share then grows."""
    return any(len(set(stage)) > 1 for stage in trace["computed"]["mean"])


def _living(traces: Sequence[Mapping[str, Any]]) -> pd.Series:
    """Return the number of records that generate at each step, as long as more than half of them do."""
    counts = pd.DataFrame([trace["computed"]["living"] for trace in traces]).sum().astype(int)
    return counts[counts > counts[0] / 2]


def speed_by_length(speeds: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw the table of `lazybench speed` as `stem` in PNG and PDF, and return both files."""
    speeds = speeds.sort_values("tokens")
    first, tokens = speeds.iloc[0], speeds["tokens"]
    titles = {"ttft_speedup": "first token", "generation_speedup": f"answer of {first['new_tokens']} tokens"}
    with style.styled():
        figure = canvas(2.2)
        axes = figure.subplots()
        for number, (key, name) in enumerate(titles.items()):
            error_bars(axes, speeds, "tokens", key, elinewidth=0.6, label=name, **line_style(number))
        if "ideal_speedup" in speeds:
            ideal = "first token, by the work that is left"
            axes.plot(tokens, speeds["ideal_speedup"], label=ideal, **REFERENCE)
        axes.axhline(1, color=style.PALE, linewidth=0.6)
        axes.set_xscale("log", base=2)
        axes.set_xticks(tokens, [f"{number:,}" for number in tokens])
        axes.set(xlabel="prompt length (tokens)", ylabel="speedup over unmodified (×)", ylim=(0, None))
        model = f"{labels.title_of(first['model'], 'model')} ({first['weights']}, in {first['dtype']})"
        method = f"{labels.title_of(first['method'])} {first['setting']}".strip()
        repeats = f"median and range of n={first['repeats']} repeats"
        axes.set_title(wrapped(f"{method} on {model}; {repeats}; {first['device']}", style.LETTERS))
        finish(figure)
        return style.save(figure, stem)


# In the order of a report's page.
FIGURES = (figure5, figure7, figure1, figure2, figure6)
