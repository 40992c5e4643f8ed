"""A run as reports read it: its settings, its environment, and a table with one row of numbers a record."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import pandas as pd

from lazybench.data.facts import DatasetFacts, datasets_of, english, load_facts
from lazybench.store.journal import WALL_TIMES, with_compared

COUNTS = ("length", "prompt_tokens", "baseline_new_tokens", "retaken", "disturbed")
# Seconds, shares from 0 to 1, nats and counts (of words in `length`); blank if not measured. `disturbed` is 1 if other
# work on the machine disturbed a pass.
TIMED = (*with_compared(WALL_TIMES), "retaken", "disturbed", "baseline_new_tokens")  # what speedups are made of
_ANSWER = ("score", "baseline_score", "length", "prompt_tokens", "new_tokens")
NUMBERS = (*_ANSWER, *TIMED, "identical_tokens", "identical_answer", "prompt_computed", "first_token_kl", "kl")
# Compact records have digests of predictions, not their texts. The scores of several seeds are separated by blanks.
_FURTHER = ("score_by_seed", "prediction_digest", "baseline_prediction_digest", "groups", "error")
COLUMNS = ("dataset", "_id", *NUMBERS, *_FURTHER)
TEXTS = ("dataset", "_id", *_FURTHER)


@dataclass(frozen=True)
class Run:
    """One run."""

    model: str  # the names of model, data and method: the levels of the run's folder
    data: str
    method: str
    digest: str  # the run's hash, the fourth level
    settings: dict[str, Any]  # its `config.yaml`, without this machine's folders
    environment: dict[str, Any]  # its `environment.json`; `command` has the arguments of the command line
    finished: bool  # whether all its records are done
    records: pd.DataFrame  # one row a record, with `COLUMNS`; `error` is empty where the method ran
    traces: dict[str, Any]  # of `trace_means`, empty without any

    @property
    def name(self) -> str:
        """The run's path below the folder of all runs."""
        return f"{self.model}/{self.data}/{self.method}/{self.digest}"

    @property
    def calibrated_on(self) -> int:
        """Number of its records that the method's schedule was calibrated on."""
        return int(self.settings.get("calibrated_on") or 0)

    @cached_property
    def facts(self) -> dict[str, DatasetFacts]:
        """Facts by dataset, those of the user's datasets included."""
        return load_facts(self.settings["data"].get("datasets"))

    @property
    def has(self) -> list[str]:
        """The datasets that task `all` has on its data."""
        datasets = self.settings["data"].get("has")
        return english() if datasets is None else list(datasets)

    @property
    def datasets(self) -> list[str]:
        """The datasets that it covers once it is finished."""
        return datasets_of(self.settings["task"], self.facts, self.has)

    def expected(self, dataset: str) -> int:
        """Return the number of its records of a dataset once it is finished, failed ones included."""
        if self.finished:
            return int((self.records["dataset"] == dataset).sum())
        return self.settings["records_of"].get(dataset, 0)


def records_table(rows: Iterable[Mapping[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    """Make a table with `COLUMNS` of rows; missing texts are empty."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype(float)
    frame[list(TEXTS)] = frame[list(TEXTS)].astype(object).fillna("")
    return frame


def rounded(records: pd.DataFrame) -> pd.DataFrame:
    """Round numbers as in CSV files."""
    seeds = records["score_by_seed"].map(lambda text: " ".join(f"{float(score):.6g}" for score in text.split()))
    return records.round(dict.fromkeys(NUMBERS, 6)).assign(score_by_seed=seeds)


def row_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Make the row of a record from its line of predictions."""
    row: dict[str, Any] = {key: line.get(key) for key in NUMBERS}
    repeats = line.get("repeats") or [line]
    prediction, unmodified = line.get("prediction"), line.get("baseline_prediction")
    # The line has the first seed's count, and the mean times over the seeds.
    counts = [repeat.get("new_tokens") for repeat in repeats]
    row["new_tokens"] = None if None in counts else fmean(counts)
    shares = [repeat.get("identical_tokens") for repeat in repeats]
    row["identical_answer"] = None if None in shares else fmean(share == 1 for share in shares)
    seeds = [repeat.get("score") for repeat in line.get("repeats") or []]
    return row | {
        "dataset": line["dataset"],
        "_id": line["_id"],
        "groups": line.get("groups"),
        "error": str(line.get("error") or ""),
        "score_by_seed": "" if None in seeds else " ".join(repr(float(score)) for score in seeds),
        "prediction_digest": _digest(prediction),
        "baseline_prediction_digest": _digest(unmodified),
    }


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
