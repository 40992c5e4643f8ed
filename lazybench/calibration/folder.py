"""A calibration's folder: what was set, what was measured, and where it goes on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lazybench.calibration.harm import Candidate, Static
from lazybench.data import Record
from lazybench.store import Journal
from lazybench.store.locks import Busy, Lock
from lazybench.store.run_folder import digest
from lazybench.store.writing import replace, writing

Measuring = Callable[[Candidate | Static | None, Record], dict[str, float]]

_SEARCHES, _MEASURED, _METHODS = "searches", "measured", "method"
# Columns of text; all others are numbers.
_TEXTS = ("half", "kind", "schedule", "importance", "task", "dataset", "_id")


class Folder:
    """Shared by calibrations that differ in what they search alone: times and harm are measured once for all of them.

    Args:
        path: `<output>/<model>/<data>/<task>/<hash of what decides what is measured>`.
        found: the folder in it, `<importance>/<half>`, of what this calibration finds.
    """

    def __init__(self, path: Path, found: str) -> None:
        self.path = path
        self.found = path / found
        self._journals: dict[str, Journal] = {}

    @contextmanager
    def opened(self, settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[Folder]:
        """Make or reopen the folder for this process alone.

        Raises:
            LazyBenchError: the folder cannot be written.
            Busy: another process is at work in it.
        """
        with writing(self.path):
            for inner in (self.path / _SEARCHES, self.path / _MEASURED, self.found / _METHODS):
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
        with suppress(FileNotFoundError):
            kept = json.loads(path.read_text("utf-8"))
            return {what: {int(tokens): seconds for tokens, seconds in by.items()} for what, by in kept.items()}
        measured = measure()
        replace(path, json.dumps(measured, indent=2) + "\n")
        return measured

    def search(self, half: str, importance: str) -> Path:
        """The journal of the searches on one half by one importance."""
        return self.path / _SEARCHES / f"{half}_{importance}.log"

    def measured(
        self, what: str, candidate: Candidate | Static | None, record: Record, measure: Measuring
    ) -> dict[str, float]:
        """Numbers of a candidate on a record, None being the unmodified model: measured once, then kept."""
        name = f"{what}-{'unmodified' if candidate is None else digest({'candidate': candidate.name})}"
        if name not in self._journals:
            self._journals[name] = Journal(self.path / _MEASURED / f"{name}.jsonl")
            self._journals[name].load()
        journal = self._journals[name]
        if record.key not in journal.rows:
            named = {} if candidate is None else {"schedule": candidate.schedule.spec}
            about = {"dataset": record.dataset, "_id": record.id, **named}
            journal.add(about | measure(candidate, record))
        return journal.rows[record.key]

    def write_method(self, name: str, text: str) -> None:
        """Write the YAML of a method: with `found` as `--config-dir`, `method=NAME` finds it."""
        replace(self.found / _METHODS / f"{name}.yaml", text)

    def write_table(self, name: str, rows: pd.DataFrame) -> None:
        """Write a table as CSV."""
        replace(self.found / f"{name}.csv", csv(rows))

    def write_records(self, name: str, rows: pd.DataFrame) -> pd.DataFrame:
        """Write a table's values by record; returns them as the file has them: a table made anew is the same."""
        path = self.found / f"records_{name}.csv"
        replace(path, csv(rows, digits=6))
        return read_records(path)


def csv(rows: pd.DataFrame, digits: int = 5) -> str:
    """Rows as CSV, numbers with so many significant digits."""
    return rows.to_csv(index=False, float_format=f"%.{digits}g", lineterminator="\n")


def read_records(path: Path) -> pd.DataFrame:
    """The rows of a file that `Folder.write_records` wrote."""
    columns = pd.read_csv(path, nrows=0).columns
    numbers = [column for column in columns if column not in _TEXTS]
    types = {column: float if column in numbers else str for column in columns}
    return pd.read_csv(path, dtype=types, keep_default_na=False, na_values={column: [""] for column in numbers})
