"""Retrieval by depth and length: where in a text, and in how long a one, a method still finds what is hidden there."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from lazybench.analysis.averages import ran
from lazybench.analysis.blocks import Block, conditions
from lazybench.analysis.labels import label
from lazybench.analysis.run_data import Run
from lazybench.data.ruler import depth_of
from lazybench.report.figures.footer import of_rows
from lazybench.report.figures.style import COLUMN, PAGE, TEXT, below, canvas, wrapped

CAPTION = (
    "Retrieval by depth and length. Mean score of the records whose hidden line, or the first of several, lies at a "
    "depth of the text, a panel a method. Blank: no records. Hatched: the baseline scores 0 on every record there, so "
    "the cell shows nothing"
)
NEEDS = None
_WIDEST = 3
_DEPTHS = 11  # most depths that have a line each; more are put together by tenths of the text
_DARK = 50  # scores below have a dark background


def draw(block: Block) -> Figure | None:
    """A panel a method with its settings; None unless there are records with a depth."""
    records = _records(block)
    if records.empty:
        return None
    lengths = sorted(records["tokens"].unique())
    lines = list(records["line"].cat.categories)
    maps = {
        panel: _cells(of, "mean").reindex(index=lines, columns=lengths)
        for panel, of in records.groupby("panel", sort=False)
    }
    floor = _cells(records[records["baseline"]], "max").reindex(index=lines, columns=lengths).to_numpy() == 0
    columns = min(_WIDEST, len(maps))
    rows = -(-len(maps) // columns)
    width = COLUMN if columns == 1 else PAGE
    figure = canvas(width, rows * (max(1.1, 0.17 * len(lines)) + 0.4) + 0.4)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (panel, scores) in zip(panels, maps.items(), strict=False):
        image = _panel(axes, wrapped(panel, (width - 2) / columns - 0.1, TEXT), scores, floor)
    for axes in panels[len(maps) - columns : len(maps)]:
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.set_xlabel("tokens of prompt\nand answer, at most")
    for axes in panels[::columns]:
        axes.set_ylabel("depth in the text (%)")
    for axes in panels[len(maps) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=panels, label="score (0 to 100)", fraction=0.05)
    met = [row for row in block.rows if any(run.records["_id"].map(depth_of).notna().any() for run in row.runs)]
    below(figure, "; ".join([of_rows(block, met), *_notes(records, floor)]), entries={})
    return figure


def _records(block: Block) -> pd.DataFrame:
    """The records with a depth that did not fail: `panel`, `baseline`, `dataset`, `tokens`, `score`, and `line`, where
    in a panel they stand: the categories are all lines in order.
    """
    found = [
        ran(run.records).assign(
            panel=_title(block, run),
            baseline=run.method == "baseline",
            tokens=run.settings["data"].get("tokens"),
            depth=lambda records: records["_id"].map(depth_of),
        )
        for run in block.runs
    ]
    records = pd.concat(found).dropna(subset=["depth"])
    depths = sorted(records["depth"].unique())
    if len(depths) <= _DEPTHS:
        line = pd.Categorical(records["depth"], depths).rename_categories([f"{depth:g}" for depth in depths])
    else:
        names = [f"{low} to {low + 10}" for low in range(0, 100, 10)]
        line = pd.cut(records["depth"].astype(float), range(0, 101, 10), labels=names, right=False)
        line = line.fillna(names[-1])  # 100 itself
    return records.assign(line=line, score=100 * records["score"])


def _cells(records: pd.DataFrame, of: str) -> pd.DataFrame:
    """The mean or the best score by line and length."""
    return records.pivot_table(values="score", index="line", columns="tokens", aggfunc=of, observed=True)


def _title(block: Block, run: Run) -> str:
    """The method and its settings, and conditions in which runs differ, but for what no score depends on."""
    of = conditions(run)
    # The length is an axis, no prompt is cut to the limit, and more threads only take less time.
    apart = [key for key in block.differing if key in of and key not in ("data.tokens", "model.limit", "threads")]
    return label(run) + (f" [{', '.join(f'{key}={of[key]}' for key in apart)}]" if apart else "")


def _panel(axes: Axes, title: str, scores: pd.DataFrame, floor: np.ndarray) -> AxesImage:
    image = axes.imshow(scores.to_numpy(), aspect="auto", cmap="cividis", vmin=0, vmax=100)
    axes.grid(visible=False)
    axes.set(title=title, xticks=range(scores.shape[1]), xticklabels=scores.columns, yticks=range(scores.shape[0]))
    axes.set_yticklabels(scores.index)
    for (row, column), score in np.ndenumerate(scores.to_numpy()):
        if np.isnan(score):
            continue
        if floor[row, column]:
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", color="#999999", lw=0))
        ink = "white" if score < _DARK else "black"
        axes.text(column, row, f"{score:.0f}", color=ink, ha="center", va="center")
    return image


def _notes(records: pd.DataFrame, floor: np.ndarray) -> list[str]:
    """Which datasets the cells are means over, of how many records, and where the baseline finds nothing."""
    counts = records.groupby(["panel", "line", "tokens"], observed=True).size()
    spread = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    said = [f"{spread} records a cell, of {_by_length(records, records)}"]
    baseline = records[records["baseline"]]
    best = baseline.groupby(["dataset", "tokens"])["score"].transform("max")
    if baseline.empty:
        said.append("no run of the baseline: where it finds nothing itself is not known")
    if floor.any():
        said.append("hatched: the baseline scores 0 on every record of the cell, which shows nothing")
    if (best == 0).any():
        said.append(f"floor: the baseline scores 0 on every record of {_by_length(baseline[best == 0], baseline)}")
    return said


def _by_length(records: pd.DataFrame, among: pd.DataFrame) -> str:
    """The datasets of the records, with the lengths where these are not all that there are."""
    every = set(among["tokens"])
    lengths = {name: sorted(set(of)) for name, of in records.groupby("dataset", sort=False)["tokens"]}
    return ", ".join(
        name + ("" if set(of) == every else f" (at {', '.join(map(str, of))})") for name, of in lengths.items()
    )
