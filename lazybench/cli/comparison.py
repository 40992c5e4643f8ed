"""What a sweep ends with: its runs side by side."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazybench.analysis.averages import MEAN
from lazybench.analysis.console import table
from lazybench.analysis.labels import setting_of
from lazybench.model.environment import describe
from lazybench.run.summary import columns
from lazybench.store.run_folder import SCORES
from lazybench.store.survey import runs_of

if TYPE_CHECKING:
    from lazybench.run.job import Job


def comparison(jobs: "Sequence[Job]", in_turn: bool) -> str | None:
    """A row a finished run: what tells it from the others, its score and its speedups; None for less than two.

    Jobs `in_turn` ran in this process; of others their latest runs are taken, on whatever machine.
    A run over several tasks has the mean over them, one over several datasets of a task the mean over those; a dataset
    that belongs to no task has a row of its own.
    """
    places = (
        (job.folder(describe(job.config.model)) if in_turn else next(runs_of(job.place, job.settings), None), job)
        for job in jobs
    )
    folders = {folder: job for folder, job in places if folder}  # shards share one
    parts = [(job, _parts(folder, job)) for folder, job in folders.items()]
    if sum(bool(of) for _, of in parts) < 2:
        return None
    found = [
        (_named(job) | {"of": name if len(of) > 1 else ""}, scores) for job, of in parts for name, scores in of.items()
    ]
    shown = columns([scores for _, scores in found])
    further = ("task", "of", "model", "data", "settings")
    keys = ["method", *(key for key in further if len({of[key] for of, _ in found}) > 1)]
    cells = [[of[key] for key in keys] for of, _ in found]
    rows = [[*about, *values] for about, values in zip(cells, zip(*shown.values(), strict=True), strict=True)]
    return table([*keys, *shown], rows, left=len(keys))


def _named(job: "Job") -> dict[str, str]:
    config = job.config
    about = {"method": job.method.name, "task": config.task, "model": config.model.name, "data": config.data.name}
    return about | {"settings": setting_of(job.method.name, job.settings["method"])}


def _parts(folder: Path, job: "Job") -> dict[str, Any]:
    """The run's numbers, of its tasks as a whole and of each dataset without one; none where it is not finished."""
    try:
        scores = json.loads((folder / SCORES).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    alone = {name: of for name, of in scores["datasets"].items() if job.facts[name].task is None}
    return (scores["tasks"] if scores[MEAN] is None else {MEAN: scores[MEAN]}) | alone
