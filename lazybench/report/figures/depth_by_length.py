"""Retrieval by depth and length: where in a text, and in how long a one, a method still finds what is hidden there."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lazybench.analysis.averages import ran
from lazybench.analysis.blocks import Block, conditions
from lazybench.analysis.labels import label
from lazybench.analysis.run_data import Run
from lazybench.data.ruler import depth_of
from lazybench.report.figures.style import canvas, finish, of_rows, wrapped

_KNOWS = 25  # mean score of the baseline below which a task shows nothing
CAPTION = (
    "Retrieval by depth and length. Mean score (0 to 100) of the records whose hidden line, or the first of several, "
    "lies at a depth of the text; a panel a length, a line a method, the mildest strength of each first. Tasks on "
    f"which the unmodified model scores below {_KNOWS} are left out, if there are others. Blank: no records"
)
NEEDS = None
_APART = ("data.tokens", "model.limit", "threads")  # the length is an axis, and no score depends on the others


def draw(block: Block) -> Figure | None:
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
    names = [wrapped(name, 25) for name in order["line"]]
    figure = canvas(0.4 + 0.12 * sum(name.count("\n") + 1.3 for name in names))
    for axes, tokens in zip(figure.subplots(1, len(lengths), sharey=True, squeeze=False).flat, lengths, strict=True):
        of = records[records["tokens"] == tokens]
        scores = of.pivot_table(values="score", index="line", columns="depth").reindex(order["line"], columns=depths)
        axes.imshow(scores, aspect="auto", cmap="cividis", vmin=0, vmax=100)
        for (row, column), score in np.ndenumerate(scores.to_numpy()):
            if not np.isnan(score):
                ink = "white" if score < 50 else "black"  # which is on the darker half of the colours
                axes.text(column, row, f"{score:.0f}", color=ink, ha="center", va="center", fontsize=6)
        axes.set(title=f"{tokens:,} tokens", xticks=range(len(depths)), yticks=range(len(names)), yticklabels=names)
        axes.set_xticklabels([f"{depth:g}" for depth in depths], fontsize=6)
        axes.tick_params(length=0)
        axes.grid(visible=False)
    figure.supxlabel("depth in the text (%)", fontsize="medium")
    met = [row for row in block.rows if any(run.records["_id"].map(depth_of).notna().any() for run in row.runs)]
    finish(figure, f"{of_rows(block, met)}; mean of {', '.join(records['dataset'].unique())}", entries={})
    return figure


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
