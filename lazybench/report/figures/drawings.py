"""The figures: the paper's, and retrieval by depth and length; None where a block's runs lack what one shows."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from lazybench.analysis.averages import EQUAL_LENGTH, GEOMETRIC_KL, SCORE, TTFT, cell, ran, undisturbed
from lazybench.analysis.blocks import Block, Row, conditions
from lazybench.analysis.intervals import columns
from lazybench.analysis.labels import colour, is_calibrated, label, method_title, stages, task_title
from lazybench.analysis.reading import BINS
from lazybench.analysis.run_data import Run
from lazybench.data.facts import CHINESE
from lazybench.data.ruler import depth_of
from lazybench.report import paper
from lazybench.report.figures import style
from lazybench.report.figures.style import REFERENCE, around, canvas, finish, line, of_rows, panels, wrapped

_Draw = Callable[[Block], Figure | None]


class Drawing(NamedTuple):
    """A figure: what it shows, what must be run for it (None where only some data can be shown so), what draws it."""

    name: str
    caption: str
    needs: str | None
    draw: _Draw


FIGURES: list[Drawing] = []


def _drawn(caption: str, needs: str | None) -> Callable[[_Draw], _Draw]:
    def add(draw: _Draw) -> _Draw:
        FIGURES.append(Drawing(draw.__name__, caption, needs, draw))
        return draw

    return add


@_drawn(
    "Speedup of the first token, and of a whole answer at equal length, against the geometric mean over records of the "
    "KL of the next token from the unmodified model; right and low is good. Bars: 95% intervals over records",
    needs="-m method=baseline,lazyllm,static_pruning task=all trace=true",
)
def speed_against_harm(block: Block) -> Figure | None:
    """Two panels of one scale; methods without KL, or with none on any record, have no mark."""
    rows, points, tasks = [], [], block.judged()
    for row in block.compared:
        ttft, whole, harm = (cell(row, tasks, of).estimate for of in (TTFT[0], EQUAL_LENGTH, GEOMETRIC_KL))
        speedups = {"first token": ttft, "whole answer": whole}
        if row.method == "baseline" or None in speedups.values() or harm is None or harm.value == 0:
            continue
        of = {"line": _name(row), "method": row.method, "colour": colour(row.runs[0])}
        measured = speedups | {"harm": harm}
        points.append(of | {name: at for key, by in measured.items() for name, at in columns(key, by).items()})
        rows.append(row)
    if len(rows) < 2:
        return None
    table = pd.DataFrame(points)
    looks = style.method_lines({of.line: (of.method, of.colour) for of in table.drop_duplicates("line").itertuples()})
    figure, grid = panels(2, 2.0, "speedup (×)", "KL, geometric mean (nats, log)", sharey=True)
    for axes, key in zip(grid, ("first token", "whole answer"), strict=True):
        for name, each in table.groupby("line", sort=False):
            of = each.sort_values(key)
            axes.errorbar(of[key], of["harm"], xerr=around(of, key), yerr=around(of, "harm"), label=name, **looks[name])
        left, right = axes.get_xlim()
        axes.set(title=key, yscale="log", xlim=(min(1.0, left), right + 0.1))  # so that no mark is cut
    low, high = grid[0].get_ylim()
    digits = (1, 2, 5) if high < 1000 * low else (1,)
    marks = np.outer(10.0 ** np.arange(-9, 5), digits).ravel()
    grid[0].set_ylim(marks[marks <= low].max(), marks[marks >= high].min())  # so that two are there at least
    major = LogLocator(10, subs=digits, numticks=len(marks))
    grid[0].yaxis.set(major_locator=major, minor_locator=NullLocator(), major_formatter="{x:g}")
    return finish(figure, of_rows(block, rows))


@_drawn(
    "Figure 1. Share of TTFT and of decoding in the baseline's generation time; on the right TTFT's share, and TTFT "
    "over the mean decode step; n: records. The last bar is the paper's own, of Llama 2 7B on LongBench on an NVIDIA "
    "A100",
    needs="method=baseline task=all",
)
def figure1(block: Block) -> Figure | None:
    """One bar a task, one for all of them, and the paper's; ratios of means over records that were not disturbed."""
    rows = [row for row in block.rows if row.method == "baseline"]
    bars: dict[str, tuple[float, float]] = {}  # TTFT's share (%), and TTFT over a decode step
    counts: list[int] = []  # records with times, of each row
    for row in rows:
        records = undisturbed(ran(row.records)).dropna(subset=["decode_step_s"])
        counts.append(len(records))
        under = f" [{row.conditions}]" if len(rows) > 1 else ""
        parts = {task_title(task): records[records["dataset"].isin(names)] for task, names in block.tasks().items()}
        if records["dataset"].nunique() > 1:
            parts["All records"] = records
        for name, of in parts.items():
            if len(of):
                ttft, whole, step = (of[key].mean() for key in ("ttft_s", "generation_s", "decode_step_s"))
                bars[f"{name}{under}, n={len(of)}"] = 100 * ttft / whole, ttft / step
    if not bars:
        return None
    printed = paper.figure1()
    bars["paper: Llama 2 7B, A100"] = printed["ttft_share"], printed["ttft_over_decode_step"]
    names = [wrapped(name, 26) for name in bars]
    shares = [share for share, _ in bars.values()]
    places = [*range(len(bars) - 1), len(bars) - 0.7]  # the paper's stands apart
    figure = canvas(max(1.3, 0.6 + len(bars) * (0.19 + 0.12 * max(name.count("\n") for name in names))))
    axes = figure.add_subplot()
    axes.barh(places, shares, height=0.7, color=style.BLUE, label="TTFT (prefilling)")
    rest = [100 - share for share in shares]
    look = {"color": style.ORANGE, "hatch": "////", "edgecolor": "white", "linewidth": 0}
    axes.barh(places, rest, height=0.7, left=shares, label="decoding", **look)
    axes.set(xlim=(0, 100), ylim=(places[-1] + 0.5, -0.5), xlabel="generation time (%)")
    axes.set_yticks(places, names)
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(places, [f"{share:.0f}%, {ratio:.0f}×" for share, ratio in bars.values()])
    beside.set_ylabel("TTFT share, TTFT / step")
    beside.spines["right"].set_visible(False)
    for of in (axes, beside):
        of.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    return finish(figure, of_rows(block, rows, counts))


@_drawn(
    "Figure 2. Attention of the newest token in prefilling, by layer and position, and how few tokens hold it: mean "
    "and spread over layers and records",
    needs="method=baseline task=all trace=true",
)
def figure2(block: Block) -> Figure | None:
    """A heat map of attention by layer, and the share of attention that the top tokens hold.

    Both are means over the records of every baseline run that was traced; each record counts alike.
    """
    rows = [row for row in block.rows if any("attention" in run.traces for run in row.runs)]
    traced = [run.traces["attention"] for row in rows for run in row.runs if "attention" in run.traces]
    if not traced:
        return None
    weights = [of["records"] for of in traced]
    heat, mean, low, high = (
        np.average([of[key] for of in traced], axis=0, weights=weights) for key in ("map", "mean", "low", "high")
    )
    figure = canvas(3.1)
    upper, lower = figure.subplots(2, 1)
    least = max(heat[heat > 0].min(initial=1.0), heat.max() * 1e-4)
    extent = (0, 100, -0.5, len(heat) - 0.5)
    look = {"aspect": "auto", "origin": "lower", "interpolation": "nearest", "cmap": "cividis", "extent": extent}
    image = upper.imshow(np.maximum(heat, least), norm=LogNorm(least, heat.max()), **look)
    upper.grid(visible=False)
    upper.set(xlabel="position in the prompt (%)", ylabel="layer")
    figure.colorbar(image, ax=upper, format="{x:g}", label=f"attention on\n{100 // BINS}% of the prompt")
    top = np.arange(101)
    lower.fill_between(
        top, 100 * low, 100 * high, color=style.BLUE, alpha=0.25, linewidth=0, label="10th–90th percentile"
    )
    lower.plot(top, 100 * mean, color=style.BLUE, label="mean")
    lower.plot(top, top, color=style.VERMILLION, linestyle=":", label="all tokens alike")
    lower.set(xlabel="top tokens of the prompt (%)", ylabel="attention they hold (%)", xlim=(0, 100), ylim=(0, 101))
    return finish(figure, of_rows(block, rows, [sum(weights)]))


@_drawn(
    "Figure 5. TTFT speedup against score, a line a method, a point a strength, which Table 1 names. Bars: 95% "
    "intervals over records, where they are enough for one; n: records behind a point. Each panel has its own scores "
    "(LazyLLM: schedules of two stages or more, if there are any; calibrated: found on other records, unless the "
    "legend says on these)",
    needs="-m +experiment=figure5",
)
def figure5(block: Block) -> Figure | None:
    """A panel a task; None unless a method has points at two strengths or more on a task."""
    points = pd.DataFrame([point for task, names in block.tasks().items() for point in _points(block, task, names)])
    lines = points[points["method"] != "baseline"] if len(points) else points
    if lines.empty or lines.groupby(["task", "line"]).size().max() < 2:
        return None
    methods = lines.drop_duplicates("line")
    looks = style.method_lines({of.line: (of.method, of.colour) for of in methods.itertuples()})
    tasks = lines["task"].unique()
    figure, grid = panels(len(tasks), 1.2, "TTFT speedup (×)", "score (0 to 100)", sharex=True)
    for axes, task in zip(grid, tasks, strict=True):
        for _, level in points[(points["method"] == "baseline") & (points["task"] == task)].iterrows():
            axes.axhline(level["score"], label=level["line"], **REFERENCE)
        axes.axvline(1, color=style.PALE, linewidth=0.6)
        here = lines[lines["task"] == task].sort_values("speedup")
        for name, look in looks.items():
            of = here[here["line"] == name]
            bars = {"xerr": around(of, "speedup"), "yerr": around(of, "score"), "elinewidth": 0.5}
            axes.errorbar(of["speedup"], of["score"], label=name, **bars, **look)
        axes.set_title(wrapped(f"{task_title(task)}, n={style.span(here['records'])}", 24))
    return finish(figure, of_rows(block, block.compared))


def _points(block: Block, task: str, members: list[str]) -> Iterator[dict[str, object]]:
    for row in block.compared:
        score, speedup = (cell(row, {task: members}, of) for of in (SCORE, TTFT[0]))
        if score.estimate is not None and (speedup.estimate is not None or row.method == "baseline"):
            of = {"task": task, "line": _name(row), "method": row.method, "colour": colour(row.runs[0])}
            of |= {"records": score.records}
            yield of | columns("score", score.estimate) | columns("speedup", speedup.estimate)


def _name(row: Row) -> str:
    """What a row's line is called: the method, a line of its own for its calibrated schedules."""
    name = method_title(row.runs[0])
    if is_calibrated(row.runs[0]):
        name += " calibrated" + (" on these records" if any(run.calibrated_on for run in row.runs) else "")
    return f"{name} [{row.conditions}]" if row.conditions else name


@_drawn(
    "Figure 6. Score against the layer that prunes, a line a keep; from schedules of a single stage. Bars: 95% "
    "intervals over records, where they are enough for one; lines stand a little apart, so that no bar hides another",
    needs="-m +experiment=figure6",
)
def figure6(block: Block) -> Figure | None:
    """A line a keep; the score is the mean over the tasks, but `chinese`, that every run has a number for."""
    single = [row for row in block.rows if row.method == "lazyllm" and len(stages(row.runs[0])) == 1]
    # Layers by number and by depth have no axis in common.
    numbered = [row for row in single if stages(row.runs[0])[0][0].isdigit()]
    by_depth, single = not numbered, numbered or single
    tasks = block.tasks()
    shared = [task for task in tasks if all(cell(row, {task: tasks[task]}, SCORE).estimate for row in single)]
    members = {task: tasks[task] for task in shared if task != CHINESE} or {task: tasks[task] for task in shared}
    rows = single if members else []
    points = pd.DataFrame([columns("score", cell(row, members, SCORE).estimate) for row in rows])
    points["layer"] = [float(stages(row.runs[0])[0][0].removesuffix("%")) for row in rows]
    points["keep"] = [-stages(row.runs[0])[0][1] for row in rows]
    points["under"] = [row.conditions for row in rows]
    lines = [(name, of.sort_values("layer")) for name, of in points.groupby(["keep", "under"])]
    if not any(len(of) > 1 for _, of in lines):
        return None
    figure = canvas(2.1)
    axes = figure.add_subplot()
    baselines = [row for row in block.rows if row.method == "baseline" and cell(row, members, SCORE).estimate]
    for row in baselines:
        axes.axhline(cell(row, members, SCORE).estimate.value, label=row.label, **REFERENCE)
    every = points["layer"].unique()
    for place, ((keep, under), of) in enumerate(lines):
        at = of["layer"] + (max(every) - min(every)) / 100 * (place - (len(lines) - 1) / 2)
        name = f"keep {-keep:g}" + (f" [{under}]" if under else "")
        axes.errorbar(at, of["score"], yerr=around(of, "score"), elinewidth=0.6, label=name, **line(place))
    of = f"mean of {len(members)} tasks" if len(members) > 1 else task_title(*members)
    axes.set(xlabel="depth that prunes (% of the layers)" if by_depth else "layer that prunes", xticks=every)
    axes.set_ylabel("score (0 to 100)")
    axes.set_title(wrapped(f"{method_title(single[0].runs[0])} of one stage: {of}", 50))
    return finish(figure, of_rows(block, [*baselines, *single]))


@_drawn(
    "Figure 7. Prompt tokens used so far against the generation step, 0 being prefilling, a line a stage: mean and "
    "10th to 90th percentile over records (averaged over a row's runs), as far as more than half of the records still "
    "generate; n: records at the first and the last step shown. One that has ended keeps its last value, so that every "
    "step is about all of them. Methods that revive nothing are left out where others do",
    needs="method=lazyllm task=all trace=true",
)
def figure7(block: Block) -> Figure | None:
    """A panel a traced row."""
    traced = [(row, [run for run in row.runs if run.traces]) for row in block.rows]
    # Halves of a calibrated method may prune behind different layers, and then there is nothing to draw of it.
    traced = [(row, runs) for row, runs in traced if len(stages := {*map(_stages, runs)}) == 1 and all(stages)]
    traced = [(row, runs) for row, runs in traced if any(map(_revives, runs))] or traced
    if not traced:
        return None
    layers = sorted({layer for _, runs in traced for layer in runs[0].traces["layers"]})
    looks = {layer: line(place) for place, layer in enumerate(layers)}
    titles = [wrapped(row.label, 24) for row, _ in traced]
    height = 1.3 + 0.13 * max(title.count("\n") for title in titles)
    shared = {"sharex": True, "sharey": True}
    figure, grid = panels(len(traced), height, "generation step", "prompt tokens used (%)", **shared)
    for axes, title, (_, runs) in zip(grid, titles, traced, strict=True):
        first, last = _panel(axes, runs, looks)
        axes.set_title(f"{title}\nn={first}" + (f" to {last}" if last < first else ""))
    entries: dict[str, Any] = {"before any stage": Line2D([], [], **REFERENCE)}
    entries |= {f"after layer {layer}": Line2D([], [], **look) for layer, look in looks.items()}
    entries["10th–90th percentile"] = Patch(color=style.GREY, alpha=0.3, linewidth=0)
    records = [sum(run.traces["computed"]["records"] for run in runs) for _, runs in traced]
    return finish(figure, of_rows(block, [row for row, _ in traced], records), entries)


def _panel(axes: Axes, runs: list[Run], looks: dict[int, dict[str, Any]]) -> tuple[int, int]:
    """Draw the stages of a row's runs; how many records generate at the first and at the last step."""
    computed = [run.traces["computed"] for run in runs]
    longest = max(len(of["mean"][0]) for of in computed)
    living = np.sum([np.pad(of["living"], (0, longest - len(of["living"]))) for of in computed], axis=0)
    steps = int(np.flatnonzero(living > living[0] / 2)[-1]) + 1
    weights = [of["records"] for of in computed]
    mean, low, high = (
        100 * np.average([_held(of[key], steps) for of in computed], axis=0, weights=weights)
        for key in ("mean", "low", "high")
    )
    axes.axhline(100, **REFERENCE)
    for place, layer in enumerate(runs[0].traces["layers"]):
        axes.fill_between(range(steps), low[place], high[place], color=looks[layer]["color"], alpha=0.2, linewidth=0)
        axes.plot(range(steps), mean[place], markevery=max(1, steps // 4), **looks[layer])
    axes.set_ylim(0, 104)
    return living[0], living[steps - 1]


def _stages(run: Run) -> tuple[int | str, ...]:
    """The layers that prune, as far as there is something to draw of them."""
    return tuple(run.traces["layers"]) if "living" in run.traces.get("computed", {}) else ()


def _revives(run: Run) -> bool:
    """Whether tokens that were pruned come back: a stage's share then grows."""
    return any(len(set(stage)) > 1 for stage in run.traces["computed"]["mean"])


def _held(values: list[list[float]], steps: int) -> np.ndarray:
    """Values by stage for so many steps, the last one held."""
    return np.asarray([[*stage, *[stage[-1]] * steps][:steps] for stage in values])


_KNOWS = 25  # mean score of the baseline below which a task shows nothing
_APART = ("data.tokens", "model.limit", "threads")  # the length is an axis, and no score depends on the others


@_drawn(
    "Retrieval by depth and length. Mean score (0 to 100) of the records whose hidden line, or the first of several, "
    "lies at a depth of the text; a panel a task and length, a line a method, the mildest strength of each first. "
    f"Tasks on which the unmodified model scores below {_KNOWS} are left out, if there are others. Blank: no records",
    needs=None,
)
def depth_by_length(block: Block) -> Figure | None:
    """A line a method with its settings; None unless there are records with a depth."""
    records = pd.concat([_records(block, run) for run in block.runs]).dropna(subset=["depth"])
    if records.empty:
        return None
    known = records[records["baseline"]].groupby("dataset")["score"].mean()
    if (known >= _KNOWS).any():
        records = records[~records["dataset"].isin(known.index[known < _KNOWS])]
    records["method"] = pd.Categorical(records["method"], records["method"].unique())  # in the rows' order
    order = records.groupby(["method", "line"], observed=True)["prompt_computed"].mean().reset_index()
    order = order.sort_values(["method", "prompt_computed"], ascending=[True, False])
    lengths, depths = (sorted(records[key].unique()) for key in ("tokens", "depth"))
    tasks, names = records["dataset"].unique(), [wrapped(name, 25) for name in order["line"]]
    figure = canvas(0.4 + len(tasks) * (0.2 + 0.12 * sum(name.count("\n") + 1.3 for name in names)))
    grid = figure.subplots(len(tasks), len(lengths), sharex=True, sharey=True, squeeze=False)
    for axes, (task, tokens) in zip(grid.flat, product(tasks, lengths), strict=True):
        of = records[(records["dataset"] == task) & (records["tokens"] == tokens)]
        scores = of.pivot_table(values="score", index="line", columns="depth").reindex(order["line"], columns=depths)
        axes.imshow(scores, aspect="auto", cmap="cividis", vmin=0, vmax=100)
        for (row, column), score in np.ndenumerate(scores.to_numpy()):
            if not np.isnan(score):
                ink = "white" if score < 50 else "black"  # which is on the darker half of the colours
                axes.text(column, row, f"{score:.0f}", color=ink, ha="center", va="center", fontsize=6)
        axes.set(
            title=f"{task}\n{tokens:,} tokens", xticks=range(len(depths)), yticks=range(len(names)), yticklabels=names
        )
        axes.set_xticklabels([f"{depth:g}" for depth in depths], fontsize=6)
        axes.tick_params(length=0)
        axes.grid(visible=False)
    figure.supxlabel("depth in the text (%)", fontsize="medium")
    met = [row for row in block.rows if any(run.records["_id"].map(depth_of).notna().any() for run in row.runs)]
    return finish(figure, of_rows(block, met), entries={})


def _records(block: Block, run: Run) -> pd.DataFrame:
    """A run's records that did not fail: `method`, `line`, where they stand, `baseline`, `tokens`, `depth`, `score`."""
    of = conditions(run)
    apart = [f"{key}={of[key]}" for key in block.differing if key in of and key not in _APART]
    records = ran(run.records)
    return records.assign(
        method=run.method,
        line=label(run) + (f" [{', '.join(apart)}]" if apart else ""),
        baseline=run.method == "baseline",
        tokens=run.settings["data"].get("tokens"),
        depth=records["_id"].map(depth_of),
        score=100 * records["score"],
    )
