"""A run as the report sees it: its settings, its machine, and one row of numbers a record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lazybench.data.facts import DatasetFacts, datasets_of, english, load_facts

# Wall times, in seconds: of the method, of the unmodified model, and of the method's engine with nothing pruned.
TIMES = tuple(
    f"{whose}{time}" for whose in ("", "baseline_", "keep_1_") for time in ("ttft_s", "generation_s", "decode_step_s")
)
COUNTS = ("prompt_tokens", "baseline_new_tokens", "retaken", "disturbed")
# Seconds, shares from 0 to 1, nats and counts; a blank means that it was not measured. `disturbed` is 1 where other
# work on the machine had a part in a time.
NUMBERS = (
    "score",
    "prompt_tokens",
    "new_tokens",
    *TIMES,
    *(f"{whose}{time}" for whose in ("", "baseline_", "keep_1_") for time in ("ttft_cpu_s", "generation_cpu_s")),
    "retaken",
    "disturbed",
    "baseline_new_tokens",
    "prompt_computed",
    "identical_tokens",
    "identical_answer",
    "first_token_kl",
)
# The digests stand for the texts of two predictions, so that records without texts can still tell them apart.
# The scores of several seeds stand side by side, with blanks between them.
TEXTS = ("dataset", "_id", "error", "score_by_seed", "prediction_digest", "baseline_prediction_digest")
COLUMNS = ("dataset", "_id", *NUMBERS, "score_by_seed", "prediction_digest", "baseline_prediction_digest", "error")


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        model: the model's name, the first level of the run's folder.
        data: the data's name, the second level.
        method: the method's name, the third level.
        digest: the hash of everything that decides the run's results, the fourth level.
        settings: what its `config.yaml` says, without this machine's folders.
        environment: what its `environment.json` says.
        finished: whether it has gone through all its records.
        records: one row a record, with `COLUMNS`; `error` is empty where the method ran.
        traces: what `traces.summarise` made of its traces, empty without any.
        folder: where it lies on this machine; None where it was read from the records of an earlier report.
    """

    model: str
    data: str
    method: str
    digest: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    finished: bool
    records: pd.DataFrame
    traces: dict[str, Any]
    folder: Path | None = None

    @property
    def name(self) -> str:
        """The run's path below the folder of all runs."""
        return f"{self.model}/{self.data}/{self.method}/{self.digest}"

    @property
    def calibrated_on(self) -> int:
        """How many of its records the method's schedule was calibrated on."""
        return int(self.settings.get("calibrated_on") or 0)

    @property
    def facts(self) -> dict[str, DatasetFacts]:
        """Facts by dataset, those of the user's datasets included."""
        return load_facts(self.settings["data"].get("datasets"))

    @property
    def has(self) -> list[str]:
        """The datasets that `all` stood for on its data."""
        has = self.settings["data"].get("has")
        return english() if has is None else list(has)

    @property
    def datasets(self) -> list[str]:
        """The datasets that it covers, or is to cover."""
        return datasets_of(self.settings["task"], self.facts, self.has)

    def count(self, dataset: str) -> int:
        """Number of its records of one dataset so far, failed ones included."""
        return int((self.records["dataset"] == dataset).sum())

    def expected(self, dataset: str) -> int | None:
        """Number of its records of one dataset once it is finished; None where nothing tells."""
        if self.finished:
            return self.count(dataset)
        known = [self.settings["data"].get("limit"), self.facts[dataset].records]
        if self.settings["data"].get("source") == "sample":
            known = known[:1]
        return min((number for number in known if number is not None), default=None)


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table with `COLUMNS`, rounded, so that it reads back from CSV as the same numbers."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype(float).round(6)
    frame[list(TEXTS)] = frame[list(TEXTS)].astype(object)
    return frame
