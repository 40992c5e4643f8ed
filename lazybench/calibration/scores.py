"""The task's own score, which confirms what the divergence has chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from lazybench.calibration.harm import Candidate
from lazybench.config import ModelConfig
from lazybench.data.facts import DatasetFacts
from lazybench.data.record import Record
from lazybench.methods.lazyllm import EQ1, PAPER, LazyLLM
from lazybench.model.decoding import Decoder, read
from lazybench.model.prompts import Prompt
from lazybench.report.intervals import estimate
from lazybench.run import scoring

ALL = "all datasets"
_FLOOR = "both score 0 on every record"


def score_of(
    record: Record,
    candidate: Candidate | None,
    ask: Callable[[Record], tuple[Prompt, Decoder]],
    facts: Mapping[str, DatasetFacts],
    model: ModelConfig,
) -> float:
    """LongBench's score of the whole answer to a record, 0 to 1; of the unmodified model's for no candidate.

    Raises:
        RecordFailure: the model cannot hold the prompt, or its logits are not finite.
    """
    prompt, decode = ask(record)
    if candidate is None:
        tokens = decode(prompt.ids)
    else:
        method = LazyLLM(PAPER, 1, candidate.schedule.spec, candidate.importance.changed or EQ1)
        method.prepare(decode.model)
        tokens = method.generate(prompt, decode, seed=0).tokens
    return scoring.score(facts[record.dataset], read(tokens, prompt, model), record.answers, record.all_classes)


def records(
    of: Sequence[Record], unmodified: Sequence[float], calibrated: Sequence[float], facts: Mapping[str, DatasetFacts]
) -> pd.DataFrame:
    """One row a record, from which `table` and `loss` are made.

    Returns:
        `task`, `dataset`, `_id`, and the scores `unmodified` and `calibrated`, 0 to 1.
    """
    return pd.DataFrame(
        {
            "task": [facts[record.dataset].task or record.dataset for record in of],
            "dataset": [record.dataset for record in of],
            "_id": [record.id for record in of],
            "unmodified": np.asarray(unmodified, dtype=float),
            "calibrated": np.asarray(calibrated, dtype=float),
        }
    )


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Scores, 0 to 100, by task, over all datasets and over the tasks; a task is the mean over its datasets.

    Args:
        rows: what `records` gives.

    Returns:
        `task`, `records`, `unmodified`, `calibrated`, and `difference` with its 95% interval, `difference_low` and
        `difference_high`, empty where there are too few records; `note` names datasets where both models score 0 on
        every record, which shows nothing. They count in the means all the same.
    """
    tasks = {task: part for task, part in rows.groupby("task", sort=False)}
    found = [_row(task, {task: part}) for task, part in tasks.items()]
    if len(tasks) > 1:
        found.append(_row(ALL, {ALL: rows}))
    if 1 < len(tasks) < rows["dataset"].nunique():
        found.append(_row(f"mean of the {len(tasks)} tasks", tasks))
    return pd.DataFrame(found)


def loss(rows: pd.DataFrame) -> float:
    """How much lower the mean over datasets of the calibrated scores is, in percent of the unmodified model's."""
    means = rows.groupby("dataset")[["unmodified", "calibrated"]].mean().mean()
    return 0.0 if means["unmodified"] == 0 else float(100 * (1 - means["calibrated"] / means["unmodified"]))


def _row(name: str, groups: Mapping[str, pd.DataFrame]) -> dict[str, object]:
    """The mean over groups of the mean over each one's datasets."""
    datasets = [[part for _, part in group.groupby("dataset", sort=False)] for group in groups.values()]
    weights = [1 / len(parts) for parts in datasets for _ in parts]
    parts = [part for group in datasets for part in group]
    floors = [part["dataset"].iloc[0] for part in parts if not part[["unmodified", "calibrated"]].to_numpy().any()]
    columns = {}
    for column in ("unmodified", "calibrated", "difference"):
        values = [100 * _values(part, column)[None] for part in parts]
        columns[column] = estimate([(of, np.ones_like(of)) for of in values], weights, limits=(-100, 100))
    return {
        "task": name,
        "records": sum(map(len, parts)),
        **{column: of.value for column, of in columns.items()},
        "difference_low": columns["difference"].low,
        "difference_high": columns["difference"].high,
        "note": _note(floors, len(parts)),
    }


def _values(part: pd.DataFrame, column: str) -> np.ndarray:
    values = part["calibrated"] - part["unmodified"] if column == "difference" else part[column]
    return values.to_numpy()


def _note(floors: Sequence[str], datasets: int) -> str:
    if not floors:
        return ""
    if len(floors) == datasets:
        return f"floor: {_FLOOR}"
    return f"counts {len(floors)} of {datasets} datasets at the floor ({_FLOOR}): {', '.join(floors)}"
