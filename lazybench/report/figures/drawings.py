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
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from lazybench.analysis import labels
from lazybench.analysis.averages import EQUAL_LENGTH, GEOMETRIC_KL, SCORE, TTFT, Measure, ran, undisturbed
from lazybench.analysis.grouping import Block, Row
from lazybench.analysis.trace_means import BINS
from lazybench.report import paper
from lazybench.report.figures import style
from lazybench.report.figures.style import REFERENCE, canvas, error_bars, finish, line_style, panels, subtitle, wrapped


def speed_against_kl(block: Block) -> Figure | None:
    """Draw two panels with the same y axis; a method without KL, or with a KL of 0, has no mark."""
    measures = {"first token": TTFT[0], "whole answer": EQUAL_LENGTH, "kl": GEOMETRIC_KL}
    points = pd.DataFrame([_point(row, block.tasks_compared(), measures) for row in block.compared])
    is_shown = (points[[*measures]].astype(float) > 0).all(axis=1) & (points["method"] != "baseline")
    points = points[is_shown]
    if len(points) < 2:
        return None
    styles = _styles(block)
    figure, grid = panels(2, 2.0, "speedup (×)", "KL, geometric mean (nats, log)", sharey=True)
    for axes, key in zip(grid, ("first token", "whole answer"), strict=True):
        for name, line in points.groupby("line", sort=False):
            error_bars(axes, line.sort_values(key), key, "kl", label=name, **styles[name])
        left, right = axes.get_xlim()
        axes.set(title=key, yscale="log", xlim=(min(1.0, left), right + 0.1))  # no mark is cut
    major = LogLocator(10, subs=(1, 2, 5))
    grid[0].yaxis.set(major_locator=major, minor_locator=NullLocator(), major_formatter="{x:g}")
    return finish(figure, subtitle(block, [*points["row"]]))


def _line(row: Row) -> str:
    """Return a row's line: a method's points; calibrated ones, and those under other conditions, have their own."""
    name = labels.method_title(row.runs[0])
    if labels.is_calibrated(row.runs[0]):
        name += " calibrated" + (" on these records" if any(run.calibrated_on for run in row.runs) else "")
    return name + (f" [{row.conditions}]" if row.conditions else "")


def _styles(block: Block) -> dict[str, dict[str, Any]]:
    """Return the style of each line of a block, the same in all its figures."""
    lines = dict.fromkeys(_line(row) for row in block.compared if row.method != "baseline")
    return {line: line_style(number) for number, line in enumerate(lines)}


def _point(row: Row, tasks: Mapping[str, Sequence[str]], measures: Mapping[str, Measure]) -> dict[str, Any]:
    """Return a row's point: its line, and each measure's value over tasks, interval and number of records."""
    point = {"row": row, "line": _line(row), "method": row.method}
    for key, measure in measures.items():
        estimate = row.measure(tasks, measure)
        point |= estimate.columns(key) | {f"{key}_records": estimate.records}
    return point


def figure1(block: Block) -> Figure | None:
    """Draw a bar a task, one for all of them, and the paper's; ratios of means over undisturbed records."""
    bars: dict[str, tuple[float, float]] = {}  # TTFT's share (%), and TTFT over a decode step
    counts: list[int] = []  # timed records of each row
    for row in block.baselines:
        records = undisturbed(ran(row.records)).dropna(subset=["decode_step_s"])
        counts.append(len(records))
        condition = f" [{row.conditions}]" if len(block.baselines) > 1 else ""
        sections = {labels.title_of(task, "task"): names for task, names in block.tasks().items()}
        if records["dataset"].nunique() > 1:
            sections["All records"] = records["dataset"]
        for name, datasets in sections.items():
            part = records[records["dataset"].isin(datasets)]
            if len(part):
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
    for place, (share, ratio) in zip(y, bars.values(), strict=True):
        axes.text(101, place, f"{share:.0f}%, {ratio:.0f}×", va="center")
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
    """Draw a panel a task; None unless some method has points at two strengths or more on a task."""
    measures, pairs = {"score": SCORE, "speedup": TTFT[0]}, product(block.tasks().items(), block.compared)
    points = pd.DataFrame([_point(row, {task: names}, measures) | {"task": task} for (task, names), row in pairs])
    points = points.dropna(subset="score")
    is_baseline = points["method"] == "baseline"
    baselines, lines = points[is_baseline], points[~is_baseline].dropna(subset="speedup")
    if not lines.duplicated(["task", "line"]).any():
        return None
    styles, tasks = _styles(block), lines["task"].unique()
    figure, grid = panels(len(tasks), 1.2, "TTFT speedup (×)", "score (0 to 100)", sharex=True)
    for axes, task in zip(grid, tasks, strict=True):
        for baseline in baselines[baselines["task"] == task].itertuples():
            axes.axhline(baseline.score, label=baseline.line, **REFERENCE)
        axes.axvline(1, color=style.PALE, linewidth=0.6)
        panel = lines[lines["task"] == task]
        for name, line in panel.groupby("line", sort=False):
            ordered = line.sort_values("speedup")
            error_bars(axes, ordered, "speedup", "score", elinewidth=0.5, label=name, **styles[name])
        axes.set_title(wrapped(f"{labels.title_of(task, 'task')}, n={style.span(panel['score_records'])}", 24))
    return finish(figure, subtitle(block, block.compared))


def figure6(block: Block) -> Figure | None:
    """Draw a line a keep; the score is the mean over the tasks, without `chinese`, that every run has a score for."""
    single = [row for row in block.rows if row.method == "lazyllm" and len(labels.stages(row.runs[0])) == 1]
    by_depth = {labels.stages(row.runs[0])[0][0].endswith("%") for row in single}
    if len(by_depth) != 1:  # layers by number and by depth have no common axis
        return None
    tasks = {
        task: names
        for task, names in block.tasks_compared().items()
        if all(row.measure({task: names}, SCORE).value is not None for row in single)
    }
    points = []
    for row in single if tasks else []:
        ((layer, keep),) = labels.stages(row.runs[0])
        name = f"keep {keep:g}" + (f" [{row.conditions}]" if row.conditions else "")
        point = {"line": name, "keep": keep, "layer": float(layer.removesuffix("%"))}
        points.append(_point(row, tasks, {"score": SCORE}) | point)
    if len({point["line"] for point in points}) == len(points):
        return None
    table = pd.DataFrame(points).sort_values(["keep", "layer"], ascending=[False, True])
    figure = canvas(2.1)
    axes = figure.add_subplot()
    baselines = [row for row in block.baselines if row.measure(tasks, SCORE).value is not None]
    for row in baselines:
        axes.axhline(row.measure(tasks, SCORE).value, label=row.label, **REFERENCE)
    layers, lines = table["layer"].unique(), table.groupby("line", sort=False)
    for number, (name, line) in enumerate(lines):
        shift = (max(layers) - min(layers)) / 100 * (number - (len(lines) - 1) / 2)
        shifted = line.assign(layer=line["layer"] + shift)
        error_bars(axes, shifted, "layer", "score", elinewidth=0.6, label=name, **line_style(number))
    mean = f"mean of {len(tasks)} tasks" if len(tasks) > 1 else labels.title_of(*tasks, "task")
    axes.set(xlabel="depth that prunes (% of the layers)" if True in by_depth else "layer that prunes", xticks=layers)
    axes.set_ylabel("score (0 to 100)")
    axes.set_title(wrapped(f"{labels.method_title(single[0].runs[0])} of one stage: {mean}", 50))
    return finish(figure, subtitle(block, [*baselines, *single]))


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
    titles = [wrapped(row.label, 24) for row, _ in traced]
    height = 1.3 + 0.13 * max(title.count("\n") for title in titles)
    figure, grid = panels(len(traced), height, "generation step", "prompt tokens used (%)", sharex=True, sharey=True)
    for axes, title, (_, traces) in zip(grid, titles, traced, strict=True):
        first, last = _stages_panel(axes, traces, styles)
        axes.set_title(f"{title}\nn={first}" + (f" to {last}" if last < first else ""))
    entries: dict[str, Any] = {"before any stage": Line2D([], [], **REFERENCE)}
    entries |= {f"after layer {layer}": Line2D([], [], **options) for layer, options in styles.items()}
    entries["10th–90th percentile"] = Patch(color=style.GREY, alpha=0.3, linewidth=0)
    records = [sum(trace["computed"]["records"] for trace in traces) for _, traces in traced]
    return finish(figure, subtitle(block, [row for row, _ in traced], records), entries)


def _revives(trace: Mapping[str, Any]) -> bool:
    """Return whether pruned tokens are revived: a stage's share then grows."""
    return any(len(set(stage)) > 1 for stage in trace["computed"]["mean"])


def _stages_panel(
    axes: Axes, traces: Sequence[Mapping[str, Any]], styles: Mapping[int, dict[str, Any]]
) -> tuple[int, int]:
    """Draw the stages of a row's runs; return the number of records that generate at the first and the last step."""
    computed = [trace["computed"] for trace in traces]
    num_records = pd.DataFrame([one["living"] for one in computed]).sum().astype(int)
    num_steps = (num_records > num_records[0] / 2).sum()
    mean, low, high = (100 * _mean(computed, key)[:, :num_steps] for key in ("mean", "low", "high"))
    axes.axhline(100, **REFERENCE)
    for stage, layer in enumerate(traces[0]["layers"]):
        spread = {"color": styles[layer]["color"], "alpha": 0.2, "linewidth": 0}
        axes.fill_between(range(num_steps), low[stage], high[stage], **spread)
        axes.plot(mean[stage], markevery=max(1, num_steps // 4), **styles[layer])
    axes.set_ylim(0, 104)
    return num_records[0], num_records[num_steps - 1]


def speed_by_length(measured: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw the table of `lazybench speed` as `stem` in PNG and PDF, and return both files."""
    measured = measured.sort_values("tokens")
    first, tokens = measured.iloc[0], measured["tokens"]
    titles = {"ttft_speedup": "first token", "generation_speedup": f"answer of {first['new_tokens']} tokens"}
    with style.styled():
        figure = canvas(2.2)
        axes = figure.subplots()
        for number, (key, name) in enumerate(titles.items()):
            error_bars(axes, measured, "tokens", key, elinewidth=0.6, label=name, **line_style(number))
        if "ideal_speedup" in measured:
            ideal = "first token, by the work that is left"
            axes.plot(tokens, measured["ideal_speedup"], label=ideal, **REFERENCE)
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
