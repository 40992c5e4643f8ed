"""A calibration's folder: what was set, what was measured, and where it goes on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lazybench.calibration.harm import Candidate
from lazybench.data import Record
from lazybench.store import Journal
from lazybench.store.locks import Busy, Lock
from lazybench.store.run_folder import digest
from lazybench.store.writing import replace, writing

# Columns of text; all others are numbers.
_TEXTS = ("half", "kind", "schedule", "importance", "task", "dataset", "_id")


class Folder:
    """Shared by calibrations that differ in what they search alone: times and harm are measured once for all of them.

    Args:
        path: `<output>/<model>/<data>/<task>/<hash of what decides what is measured>`.
        found: the folder in it, `<importance>/<half>`, of what this calibration finds; its `method/` gets methods.
    """

    def __init__(self, path: Path, found: str) -> None:
        self.path = path
        self.found = path / found
        self._journals: dict[str, Journal] = {}

    @contextmanager
    def opened(self, settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[Folder]:
        """Make or reopen the folder for this process alone; `Busy` where another one is at work in it."""
        with writing(self.path):
            for inner in (self.path / "searches", self.path / "measured", self.found / "method"):
                inner.mkdir(parents=True, exist_ok=True)
            lock = Lock(self.path / ".lock")
        try:
            if not lock.exclusive():
                raise Busy(f"another process is at work in {self.path}")
            replace(self.found / "config.yaml", yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True))
            replace(self.found / "environment.json", json.dumps(dict(environment), indent=2) + "\n")
            yield self
        finally:
            lock.close()

    def times(self, measure: Callable[[], dict[str, dict[int, float]]]) -> dict[str, dict[int, float]]:
        """A model's seconds by what takes them and the number of tokens: measured once, then kept."""
        path = self.path / "times.json"
        if not path.exists():
            replace(path, json.dumps(measure(), indent=2) + "\n")
        kept = json.loads(path.read_text("utf-8"))
        return {what: {int(tokens): seconds for tokens, seconds in by.items()} for what, by in kept.items()}

    def measured(self, what: str, candidate: Candidate | None, record: Record, measure: Callable) -> dict[str, float]:
        """What `measure(candidate, record)` gives, None being the unmodified model: measured once, then kept."""
        name = f"{what}-{'unmodified' if candidate is None else digest({'candidate': candidate.name})}"
        if name not in self._journals:
            self._journals[name] = Journal(self.path / "measured" / f"{name}.jsonl")
            self._journals[name].load()
        journal = self._journals[name]
        if record.key not in journal.rows:
            named = {} if candidate is None else {"schedule": candidate.schedule.spec}
            journal.add({"dataset": record.dataset, "_id": record.id, **named, **measure(candidate, record)})
        return journal.rows[record.key]

    def write(self, name: str, rows: pd.DataFrame, digits: int = 5) -> pd.DataFrame:
        """Write a table as CSV; returns it as the file has it, so that what is made of it can be made again."""
        path = self.found / f"{name}.csv"
        replace(path, csv(rows, digits))
        return read_records(path)


def csv(rows: pd.DataFrame, digits: int = 5) -> str:
    """Rows as CSV, numbers with so many significant digits."""
    return rows.to_csv(index=False, float_format=f"%.{digits}g", lineterminator="\n")


def read_records(path: Path) -> pd.DataFrame:
    """The rows of a file that `Folder.write` wrote."""
    return pd.read_csv(path, dtype=dict.fromkeys(_TEXTS, str), keep_default_na=False, na_values="")
