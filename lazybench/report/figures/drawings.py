"""Figures of a report (the paper's, KL by speedup), and the figure of `speed`.

Each function in `FIGURES` draws a block's figure, and returns None if the block lacks the runs for it. `captions.yaml`
has their captions.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from lazybench.analysis import averages, labels
from lazybench.analysis.averages import Measure, average, drop_disturbed, drop_failed
from lazybench.analysis.grouping import Block, Row, covering_most, with_difference
from lazybench.analysis.intervals import Estimate
from lazybench.analysis.trace_means import BINS
from lazybench.report import paper
from lazybench.report.figures import style
from lazybench.report.figures.style import REFERENCE, canvas, error_bars, finish, line_style, panels, subtitle, wrapped

_FEW = 30  # records of a task


def speed_against_kl(block: Block) -> Figure | None:
    """Plot KL against the speedup of the first token and of the whole answer; without KL or with 0 there is no mark."""
    measures = {"first token": averages.TTFT[0], "whole answer": averages.EQUAL_LENGTH, "kl": averages.GEOMETRIC_KL}
    points = [_point(block, row, block.tasks_compared(), measures) for row in block.pruned]
    points = [point for point in points if all(point[key] for key in measures)]
    if len(points) < 2 or len(points := covering_most(pd.DataFrame(points))) < 2:
        return None
    styles, keys = _styles(block), ("first token", "whole answer")
    figure, grid = panels(keys, 2.0, "speedup (×)", "KL, geometric mean (nats, log)", sharey=True)
    for axes, key in zip(grid, keys, strict=True):
        for name, line in points.groupby("line", sort=False):
            error_bars(axes, line.sort_values(key), key, "kl", label=name, **styles[name])
        left, right = axes.get_xlim()
        axes.set(yscale="log", xlim=(min(1.0, left), right + 0.1))  # no mark is cut
        axes.xaxis.set_major_formatter("{x:g}")
    major = LogLocator(10, subs=(1, 2, 5))
    grid[0].yaxis.set(major_locator=major, minor_locator=NullLocator(), major_formatter="{x:g}")
    return finish(figure, subtitle(block, [*points["row"]]))


def _line(block: Block, row: Row) -> str:
    """Return the name of the line that joins a row's point to others: its method and conditions.

    Calibrated rows have lines of their own, unless all of the block's rows are calibrated, as the heading then says.
    """
    name = labels.method_title(row.runs[0])
    if any(run.calibrated_on for run in row.runs):
        name += " calibrated on these records"
    elif labels.is_calibrated(row.runs[0]) and not all(labels.is_calibrated(one.runs[0]) for one in block.pruned):
        name += " calibrated"
    return name + (f" [{row.conditions}]" if row.conditions else "")


def _styles(block: Block) -> dict[str, dict[str, Any]]:
    """Return the style of each line of a block, the same in all its figures."""
    lines = dict.fromkeys(_line(block, row) for row in block.pruned)
    return {line: line_style(number) for number, line in enumerate(lines)}


def _point(
    block: Block, row: Row, tasks: Mapping[str, Sequence[str]], measures: Mapping[str, Measure]
) -> dict[str, Any]:
    """Return a row's point: its line, the tasks, and each measure's value over them, interval and number of records."""
    records, datasets, missing = row.select(tasks)
    point: dict[str, Any] = {"row": row, "line": _line(block, row), "task": " ".join(tasks), "datasets": len(datasets)}
    complete = with_difference(drop_failed(records), row, block)
    for key, measure in measures.items():
        estimate = Estimate() if missing else average(complete, measure)
        point |= estimate.columns(key) | {f"{key}_records": estimate.records}
    return point


def _by_task(
    block: Block, rows: Sequence[Row], x: str, xlabel: str, styles: Mapping[str, Any], entries: Mapping[str, Any]
) -> Figure | None:
    """Draw a panel a task of the score less the baseline's by `x`; None without two points.

    If a task has fewer than `_FEW` records, only the four tasks with the most records have panels. Tasks on which every
    method scores 0 have none. `entries` maps a row's label to values that are added to its points, or replace theirs.
    """
    measures = {"difference": averages.SCORE_DIFFERENCE, "speedup": averages.TTFT[0]}
    points = [
        _point(block, row, {task: names}, measures) | entries.get(row.label, {})
        for (task, names), row in product(block.tasks().items(), rows)
        if not block.floors.issuperset(names)
    ]
    points = [point for point in points if None not in (point["difference"], point[x])]
    if len(points) < 2 or len(table := covering_most(pd.DataFrame(points))) < 2:
        return None
    sizes = table.groupby("task")["difference_records"].max().sort_values(ascending=False, kind="stable")
    if (sizes < _FEW).any():
        table = table[table["task"].isin(sizes.index[:4])]
    counts = table.groupby("task", sort=False)["difference_records"].agg(style.span)
    titles = [f"{labels.title_of(task, 'task')}, n={count}" for task, count in counts.items()]
    figure, grid = panels(titles, 1.4, xlabel, "score less the baseline's (points)", sharex=True)
    for axes, (_, panel) in zip(grid, table.groupby("task", sort=False), strict=True):
        axes.axhline(0, label="baseline", **REFERENCE)
        for name, line in panel.groupby("line", sort=False):
            error_bars(axes, line.sort_values(x), x, "difference", label=name, **styles[name])
        if "tick" in table:
            axes.set_xticks(table["tick"].unique())
    return finish(figure, subtitle(block, rows))


def figure1(block: Block) -> Figure | None:
    """Draw a bar a task, one for all of them, and the paper's; ratios of means over undisturbed records."""
    bars: dict[str, tuple[float, float]] = {}  # TTFT's share (%), and TTFT over a decode step
    counts: list[int] = []  # timed records of each row
    for row in block.baselines:
        records = drop_disturbed(drop_failed(row.records)).dropna(subset=["ttft_s"])
        counts.append(len(records))
        condition = f" [{row.conditions}]" if row.conditions else ""
        sections = {labels.title_of(task, "task"): names for task, names in block.tasks().items()}
        if len(sections) > 1:
            sections["All records"] = [*records["dataset"].unique()]
        for name, datasets in sections.items():
            part = records[records["dataset"].isin(datasets)]
            if len(part):
                # An answer of one token has no decode step.
                ttft, generation, step = part[["ttft_s", "generation_s", "decode_step_s"]].mean()
                bars[f"{name}{condition}, n={len(part)}"] = 100 * ttft / generation, ttft / step
    if not bars:
        return None
    published = paper.figure1()
    bars["paper: Llama 2 7B, A100"] = published["ttft_share"], published["ttft_over_decode_step"]
    names, shares = [wrapped(name, 26) for name in bars], np.array([share for share, _ in bars.values()])
    y = [*range(len(bars) - 1), len(bars) - 0.7]  # a gap before the paper's bar
    figure = canvas(max(1.3, 0.6 + len(bars) * (0.19 + 0.12 * max(name.count("\n") for name in names))))
    axes = figure.add_subplot()
    axes.barh(y, shares, height=0.7, color=style.BLUE, label="TTFT (prefilling)")
    hatched = {"color": style.ORANGE, "hatch": "////", "edgecolor": "white", "linewidth": 0}
    axes.barh(y, 100 - shares, height=0.7, left=shares, label="decoding", **hatched)
    axes.set(xlim=(0, 100), ylim=(y[-1] + 0.5, -0.5), xlabel="generation time (%)")
    axes.set_yticks(y, names)
    for height, (share, ratio) in zip(y, bars.values(), strict=True):
        axes.text(101, height, f"{share:.0f}%" + (f", {ratio:.0f}×" if ratio > 0 else ""), va="center")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    return finish(figure, subtitle(block, block.baselines, counts))


def figure2(block: Block) -> Figure | None:
    """Draw attention by layer and position, and its share on the top tokens; means over all traced records."""
    pairs = [(row, run.traces["attention"]) for row in block.rows for run in row.runs if "attention" in run.traces]
    if not pairs:
        return None
    rows, traced = zip(*pairs, strict=True)
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
    lower.plot(top, 100 * mean, label="mean", **blue)
    lower.plot(top, top, color=style.VERMILLION, linestyle=":", label="all tokens alike")
    lower.set(xlabel="top tokens of the prompt (%)", ylabel="attention they hold (%)", xlim=(0, 100), ylim=(0, 101))
    return finish(figure, subtitle(block, rows, [sum(trace["records"] for trace in traced)]))


def _mean(traces: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Average arrays of several runs' traces over their records; shorter arrays keep their last values."""
    arrays = [np.array(trace[key]) for trace in traces]
    length = max(array.shape[-1] for array in arrays)
    padded = [
        np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])], mode="edge") for array in arrays
    ]
    return np.average(padded, axis=0, weights=[trace["records"] for trace in traces])


def figure5(block: Block) -> Figure | None:
    """Plot the score less the baseline's against the TTFT speedup of Table 1's rows, a panel per task."""
    return _by_task(block, block.pruned, "speedup", "TTFT speedup (×)", _styles(block), {})


def figure6(block: Block) -> Figure | None:
    """Plot the score less the baseline's against the layer of schedules of a single stage, a line per keep."""
    stages = {row.label: labels.stages(row.runs[0]) for row in block.rows if row.method == "lazyllm"}
    rows = [row for row in block.rows if len(stages.get(row.label, ())) == 1]
    rows.sort(key=lambda row: -stages[row.label][0][1])
    by_depth = {stages[row.label][0][0].endswith("%") for row in rows}
    if len(by_depth) != 1:  # layers by number and by depth have no common axis
        return None
    entries, numbers = {}, {}
    for row in rows:
        ((layer, keep),) = stages[row.label]
        name = f"keep {keep:g}" + (f" [{row.conditions}]" if row.conditions else "")
        number, tick = numbers.setdefault(name, len(numbers)), float(layer.removesuffix("%"))
        # Each line is shifted, so that no bar hides another.
        entries[row.label] = {"line": name, "tick": tick, "layer": tick * (1 + number / 100)}
    styles = {name: line_style(number) for name, number in numbers.items()}
    xlabel = "depth that prunes (%)" if True in by_depth else "layer that prunes"
    return _by_task(block, rows, "layer", xlabel, styles, entries)


def figure7(block: Block) -> Figure | None:
    """Draw a panel a traced row; rows whose runs prune after different layers are left out."""
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
    styles = {layer: line_style(number) for number, layer in enumerate(layers)}
    living = [_living(traces) for _, traces in traced]
    titles = [f"{row.label}, n={style.span(counts)}" for (row, _), counts in zip(traced, living, strict=True)]
    figure, grid = panels(titles, 1.3, "generation step", "prompt tokens used (%)", sharex=True, sharey=True)
    for axes, (_, traces), counts in zip(grid, traced, living, strict=True):
        computed, num_steps = [trace["computed"] for trace in traces], len(counts)
        mean, low, high = (100 * _mean(computed, key)[:, :num_steps] for key in ("mean", "low", "high"))
        axes.axhline(100, **REFERENCE)
        for stage, layer in enumerate(traces[0]["layers"]):
            spread = {"color": styles[layer]["color"], "alpha": 0.2, "linewidth": 0}
            if len(computed) == 1:  # those of several runs have no common percentiles
                axes.fill_between(range(num_steps), low[stage], high[stage], **spread)
            axes.plot(mean[stage], markevery=max(1, num_steps // 4), **styles[layer])
        axes.set_ylim(0, 104)
    entries: dict[str, Any] = {"before any stage": Line2D([], [], **REFERENCE)}
    entries |= {f"after layer {layer}": Line2D([], [], **options) for layer, options in styles.items()}
    entries["10th–90th percentile"] = Patch(color=style.GREY, alpha=0.3, linewidth=0)
    records = [sum(trace["computed"]["records"] for trace in traces) for _, traces in traced]
    return finish(figure, subtitle(block, [row for row, _ in traced], records), entries)


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
        axes.set_title(wrapped(f"{labels.title_of(first['method'])} {first['setting']}".strip(), 50))
        model = f"{labels.title_of(first['model'], 'model')} ({first['weights']}, in {first['dtype']})"
        repeats = f"median and range of n={first['repeats']} repeats"
        finish(figure, f"{model}; {repeats}; {first['device']}")
        return style.save(figure, stem)


# In the order of a report's page.
FIGURES = (speed_against_kl, figure5, figure7, figure1, figure2, figure6)
