"""The table at the end of a sweep: its runs side by side."""

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
    from lazybench.run.prepare import Job


def comparison(jobs: "Sequence[Job]", in_turn: bool) -> str | None:
    """Return a table of a sweep's finished runs; None for fewer than two.

    A row has what tells a run from the others, its score and its speedups: means over its tasks, or over the datasets
    of its task. A dataset that belongs to no task has a row of its own.

    Args:
        jobs: the jobs of the sweep.
        in_turn: whether they ran in this process; else the latest run of each counts, on any machine.
    """
    runs = {}  # by folder, which shards share
    for job in jobs:
        folder = (
            job.folder(describe(job.config.model))
            if in_turn
            else next(runs_of(job.method_folder, job.settings, job.used_facts), None)
        )
        if folder is not None:
            runs[folder] = job
    labels, numbers, finished = [], [], 0
    for folder, job in runs.items():
        parts = _parts(folder, job)
        finished += bool(parts)
        labels += [_labels(job) | {"of": name if len(parts) > 1 else ""} for name in parts]
        numbers += parts.values()
    if finished < 2:
        return None
    keys = [key for key in labels[0] if key == "method" or len({label[key] for label in labels}) > 1]
    shown = columns(numbers)
    cells = zip(*shown.values(), strict=True)
    rows = [[*(label[key] for key in keys), *row] for label, row in zip(labels, cells, strict=True)]
    return table([*keys, *shown], rows, left=len(keys))


def _labels(job: "Job") -> dict[str, str]:
    config, name = job.config, job.method.name
    labels = {"method": name, "task": config.task, "of": "", "model": config.model.name, "data": config.data.name}
    return labels | {"settings": setting_of(name, job.settings["method"])}


def _parts(folder: Path, job: "Job") -> dict[str, Any]:
    """Return a run's numbers by name, over its tasks and of each dataset without one; empty if it is not finished."""
    try:
        scores = json.loads((folder / SCORES).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    alone = {name: numbers for name, numbers in scores["datasets"].items() if job.facts[name].task is None}
    return (scores["tasks"] if scores[MEAN] is None else {MEAN: scores[MEAN]}) | alone
