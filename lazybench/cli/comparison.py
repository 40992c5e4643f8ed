"""What a sweep ends with: its runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lazybench.analysis.averages import MEAN
from lazybench.analysis.console import table
from lazybench.config import RunConfig
from lazybench.run.summary import columns
from lazybench.store import states
from lazybench.store.run_folder import SCORES
from lazybench.store.states import State, StateFile


def comparison(jobs: Sequence[RunConfig]) -> str | None:
    """A row a finished run: what tells it from the others, its score and its speedups; None for less than two.

    A run over several tasks has the mean over them, one over several datasets of a task the mean over those.
    """
    found = [(state, scores) for job in jobs if (state := _done(job)) and (scores := _scores(job, state))]
    if len(found) < 2:
        return None
    shown = columns([scores for _, scores in found])
    keys = ["method", *(key for key in ("task", "model", "data") if len({getattr(of, key) for of, _ in found}) > 1)]
    if len({tuple(getattr(of, key) for key in keys) for of, _ in found}) < len(found):
        keys.append("settings")
    cells = [[getattr(state, key) for key in keys] for state, _ in found]
    rows = [[*about, *values] for about, values in zip(cells, zip(*shown.values(), strict=True), strict=True)]
    return table([*keys, *shown], rows, left=len(keys))


def _done(job: RunConfig) -> State | None:
    state = states.read(StateFile(job).path)
    return state if state is not None and state.state == states.DONE and state.folder is not None else None


def _scores(job: RunConfig, state: State) -> dict[str, Any] | None:
    """The run's numbers as a whole; None where its shards are not all done."""
    try:
        scores = json.loads((Path(job.output) / state.folder / SCORES).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return scores[MEAN] or next(iter(scores["tasks"].values()), None)
