"""Scores of whole answers, which confirm what the divergence has chosen."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lazybench.analysis.averages import Measure, average
from lazybench.calibration.harm import Candidate
from lazybench.methods.base import answer
from lazybench.model.decoding import Decoder, read
from lazybench.model.prompts import Prompt
from lazybench.run import scoring

_SCORES = ["unmodified", "calibrated"]
_MEASURES = [Measure(name, name, name, scale=100, least=-100, most=100) for name in (*_SCORES, "difference")]
_FLOOR = "both score 0 on every record"


def score(prompt: Prompt, decode: Decoder, candidate: Candidate | None) -> float:
    """LongBench's score of the whole answer to a prompt, 0 to 1; the unmodified model's without a candidate.

    Raises:
        RecordFailure: the model cannot hold the prompt, or its logits are not finite.
    """
    if candidate is None:
        tokens = decode(prompt.ids)
    else:
        method = candidate.method
        method.prepare(decode.model)
        tokens = answer(method, prompt, decode, seed=0).tokens
    record = prompt.record
    return scoring.score(prompt.builder.facts, read(tokens, prompt), record.answers, record.all_classes)


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Scores, 0 to 100, by task, over all datasets and over the tasks; a task is the mean over its datasets.

    Args:
        rows: what `Study.answers` gives.

    Returns:
        `task`, `records`, `unmodified`, `calibrated`, and `difference` with its 95% interval, `difference_low` and
        `difference_high`, empty where there are too few records; `note` names datasets where both models score 0 on
        every record, which shows nothing. They count in the means all the same.
    """
    tasks = {task: part for task, part in rows.groupby("task", sort=False)}
    found = [_row(task, [part]) for task, part in tasks.items()]
    if len(tasks) > 1:
        found.append(_row("all datasets", [rows]))
    if 1 < len(tasks) < rows["dataset"].nunique():
        found.append(_row(f"mean of the {len(tasks)} tasks", list(tasks.values())))
    return pd.DataFrame(found)


def loss(rows: pd.DataFrame) -> float:
    """How much lower the mean over datasets of the calibrated scores is, in percent of the unmodified model's."""
    means = rows.groupby("dataset")[_SCORES].mean().mean()
    return 0.0 if means["unmodified"] == 0 else float(100 * (1 - means["calibrated"] / means["unmodified"]))


def _row(name: str, groups: Sequence[pd.DataFrame]) -> dict[str, object]:
    """The mean over groups of the mean over each one's datasets."""
    groups = [group.assign(difference=group["calibrated"] - group["unmodified"]) for group in groups]
    tasks = [[part for _, part in group.groupby("dataset", sort=False)] for group in groups]
    found = {measure.key: average(tasks, measure) for measure in _MEASURES}
    parts = [part for datasets in tasks for part in datasets]
    floors = [part["dataset"].iloc[0] for part in parts if not part[_SCORES].to_numpy().any()]
    if len(floors) == len(parts):
        note = f"floor: {_FLOOR}"
    else:
        note = f"counts {len(floors)} of {len(parts)} datasets at the floor ({_FLOOR}): {', '.join(floors)}"
    return {
        "task": name,
        "records": sum(map(len, parts)),
        **{key: of.value for key, of in found.items()},
        "difference_low": found["difference"].low,
        "difference_high": found["difference"].high,
        "note": note if floors else "",
    }
