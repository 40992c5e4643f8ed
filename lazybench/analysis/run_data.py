"""A run as the report sees it: its settings, its machine, and one row of numbers a record.

Its compact form is a CSV of the numbers and a JSON of everything else, small enough to commit.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from lazybench.data.facts import DatasetFacts, datasets_of, english, load_facts
from lazybench.errors import LazyBenchError
from lazybench.store.journal import CPU_TIMES, WALL_TIMES, with_compared

TIMES = with_compared(WALL_TIMES)
COUNTS = ("length", "prompt_tokens", "baseline_new_tokens", "retaken", "disturbed")
# Seconds, shares from 0 to 1, nats and counts, of words in `length`; a blank means that it was not measured.
# `disturbed` is 1 where other work on the machine disturbed a pass. Those of timed records alone come first.
TIMED = (
    *TIMES,
    *with_compared(CPU_TIMES),
    *("retaken", "disturbed", "baseline_new_tokens", "identical_tokens", "identical_answer"),
)
NUMBERS = (
    *("score", "length", "prompt_tokens", "new_tokens"),
    *TIMED,
    *("prompt_computed", "first_token_kl", "kl"),
)
# The digests stand for the texts of two predictions, so that records without texts can still tell them apart.
# The scores of several seeds stand side by side, with blanks between them.
_FURTHER = ("score_by_seed", "prediction_digest", "baseline_prediction_digest", "error")
COLUMNS = ("dataset", "_id", *NUMBERS, *_FURTHER)
TEXTS = ("dataset", "_id", *_FURTHER)
_MARK = "lazybench records"
# What stands in the JSON file as it is.
_KEPT = ("finished", "settings", "environment", "traces")


@dataclass(frozen=True)
class Run:
    """One run."""

    model: str  # the names of model, data and method: the levels of the run's folder
    data: str
    method: str
    digest: str  # the hash of everything that decides the run's results, the fourth level
    settings: dict[str, Any]  # what its `config.yaml` says, without this machine's folders
    environment: dict[str, Any]  # what its `environment.json` says; `command` has the words that ask for it
    finished: bool  # whether it has gone through all its records
    records: pd.DataFrame  # one row a record, with `COLUMNS`; `error` is empty where the method ran
    traces: dict[str, Any]  # what `reading` made of its traces, empty without any

    @property
    def name(self) -> str:
        """The run's path below the folder of all runs."""
        return f"{self.model}/{self.data}/{self.method}/{self.digest}"

    @property
    def calibrated_on(self) -> int:
        """How many of its records the method's schedule was calibrated on."""
        return int(self.settings.get("calibrated_on") or 0)

    @cached_property
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
        """The datasets that it covers once it is finished."""
        return datasets_of(self.settings["task"], self.facts, self.has)

    def expected(self, dataset: str) -> int | None:
        """Number of its records of one dataset once it is finished, failed ones included; None if it is not known."""
        if self.finished:
            return int((self.records["dataset"] == dataset).sum())
        if "records_of" in self.settings:
            return self.settings["records_of"].get(dataset, 0)
        known = [self.settings["data"].get("limit"), self.facts[dataset].records]
        if self.settings["data"].get("source") == "sample":
            known = known[:1]
        return min((number for number in known if number is not None), default=None)


def records_table(rows: Iterable[Mapping[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    """Rows as a table with `COLUMNS`; texts that are missing are empty."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype(float)
    frame[list(TEXTS)] = frame[list(TEXTS)].astype(object).fillna("")
    return frame


def rounded(records: pd.DataFrame) -> pd.DataFrame:
    """The same table as it reads back from CSV."""
    seeds = records["score_by_seed"].map(lambda text: " ".join(f"{float(score):.6g}" for score in text.split()))
    return records.round(dict.fromkeys(NUMBERS, 6)).assign(score_by_seed=seeds)


def row_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a record, from its line of predictions."""
    row: dict[str, Any] = {key: line.get(key) for key in NUMBERS}
    repeats = line.get("repeats") or [line]
    prediction, unmodified = line.get("prediction"), line.get("baseline_prediction")
    # The line's own count is the first seed's, its times are means over the seeds.
    counts = [repeat.get("new_tokens") for repeat in repeats]
    row["new_tokens"] = None if None in counts else fmean(counts)
    if prediction is not None and unmodified is not None and not line.get("error"):
        row["identical_answer"] = fmean(repeat.get("prediction") == unmodified for repeat in repeats)
    seeds = [repeat.get("score") for repeat in line.get("repeats") or []]
    return row | {
        "dataset": line["dataset"],
        "_id": line["_id"],
        "error": str(line.get("error") or ""),
        "score_by_seed": "" if None in seeds else " ".join(repr(float(score)) for score in seeds),
        "prediction_digest": _digest(prediction),
        "baseline_prediction_digest": _digest(unmodified),
    }


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def write_compact(runs: Iterable[Run], folder: Path) -> None:
    """Write `<model>/<data>/<method>/<hash>.csv` and `.json` for each run."""
    for run in runs:
        path = folder / run.name
        path.parent.mkdir(parents=True, exist_ok=True)
        run.records.astype(dict.fromkeys(COUNTS, "Int64")).to_csv(f"{path}.csv", index=False, lineterminator="\n")
        names = {key: getattr(run, key) for key in ("model", "data", "method", "digest")}
        about = {"format": f"{_MARK} 2", "run": names} | {key: getattr(run, key) for key in _KEPT}
        Path(f"{path}.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def is_compact(path: Path) -> bool:
    """Whether a `.json` file is one that `write_compact` wrote, damaged or not."""
    return path.with_suffix(".csv").is_file() or _MARK.encode() in path.read_bytes()[: len(_MARK) + 40]


def read_compact(path: Path) -> Run:
    """The run whose `.json` file this is; a pair of files that is damaged raises `LazyBenchError`."""
    types = dict.fromkeys(TEXTS, str) | dict.fromkeys(NUMBERS, float)
    blanks = {key: [""] for key in NUMBERS}
    try:
        about = json.loads(path.read_text("utf-8"))
        frame = pd.read_csv(path.with_suffix(".csv"), dtype=types, keep_default_na=False, na_values=blanks)
        frame[["dataset", "_id", "score", "error"]]  # further ones came later
        return Run(**about["run"], **{key: about[key] for key in _KEPT}, records=rounded(records_table(frame)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LazyBenchError(f"{path} and its .csv are damaged ({error}): write them again from the runs") from error
