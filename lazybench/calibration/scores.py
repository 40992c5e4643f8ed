"""The task's own score, which confirms what the divergence has chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from lazybench import scoring
from lazybench.calibration.harm import Candidate
from lazybench.config import ModelConfig
from lazybench.data.record import Record
from lazybench.decoding import Decoder, read
from lazybench.facts import DatasetFacts
from lazybench.methods.lazyllm import EQ1, PAPER, LazyLLM
from lazybench.prompts import Prompt
from lazybench.report.bootstrap import estimate

ALL = "all datasets"


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


def table(
    records: Sequence[Record], unmodified: Sequence[float], scores: Sequence[float], facts: Mapping[str, DatasetFacts]
) -> pd.DataFrame:
    """Scores, 0 to 100, by task and over all datasets, each a mean over datasets.

    Returns:
        `task`, `records`, `unmodified`, `score`, and `difference` with its 95% interval, `difference_low` and
        `difference_high`; none where a dataset has a single record.
    """
    frame = pd.DataFrame(
        {
            "dataset": [record.dataset for record in records],
            "task": [facts[record.dataset].task or record.dataset for record in records],
            "unmodified": 100 * np.asarray(unmodified, dtype=float),
            "score": 100 * np.asarray(scores, dtype=float),
        }
    )
    frame["difference"] = frame["score"] - frame["unmodified"]
    parts = [(task, frame[frame["task"] == task]) for task in frame["task"].unique()]
    if len(parts) > 1:
        parts.append((ALL, frame))
    return pd.DataFrame([_row(name, part) for name, part in parts])


def loss(records: Sequence[Record], unmodified: Sequence[float], scores: Sequence[float]) -> float:
    """How much lower the mean over datasets of the scores is, in percent of the unmodified model's."""
    frame = pd.DataFrame({"dataset": [record.dataset for record in records], "before": unmodified, "after": scores})
    means = frame.groupby("dataset").mean().mean()
    return 0.0 if means["before"] == 0 else float(100 * (1 - means["after"] / means["before"]))


def _row(name: str, part: pd.DataFrame) -> dict[str, object]:
    row: dict[str, object] = {"task": name, "records": len(part)}
    for column in ("unmodified", "score", "difference"):
        datasets = [of[column].to_numpy()[None] for _, of in part.groupby("dataset", sort=False)]
        found = estimate([(values, np.ones_like(values)) for values in datasets])
        row[column] = found.value
        if column == "difference":
            row |= {"difference_low": found.low, "difference_high": found.high}
    return row
