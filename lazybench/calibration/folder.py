"""A calibration's folder: what was set, what was measured, and where it goes on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from lazybench.calibration.harm import Candidate
from lazybench.data.record import Record
from lazybench.errors import LazyBenchError
from lazybench.store.locks import Busy, Lock
from lazybench.store.run_folder import Journal, digest, replace

CONFIG, ENVIRONMENT, TIMES = "config.yaml", "environment.json", "times.json"
_LOCK = ".lock"
_SEARCHES = "searches"
_MEASURED, _METHODS = "measured", "method"


class Folder:
    """Where calibrations live that differ in no more than what is searched: times and harm are measured once for all.

    Args:
        path: `<output>/<model>/<data>/<task>/<hash of what decides what is measured>`.
        found: the folder in it, `<importance>/<half>`, of what this calibration finds.
    """

    def __init__(self, path: Path, found: str) -> None:
        self.path = path
        self.found = path / found

    @contextmanager
    def opened(self, settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[Folder]:
        """Make or reopen the folder for this process alone.

        Raises:
            LazyBenchError: the folder cannot be written.
            Busy: another process is at work in it.
        """
        try:
            for inner in (self.path / _SEARCHES, self.path / _MEASURED, self.found / _METHODS):
                inner.mkdir(parents=True, exist_ok=True)
            lock = Lock(self.path / _LOCK)
        except OSError as error:
            raise LazyBenchError(f"{self.path} cannot be written: {error.strerror or error}") from error
        try:
            if not lock.exclusive():
                raise Busy(f"another process is at work in {self.path}")
            replace(self.found / CONFIG, yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True))
            replace(self.found / ENVIRONMENT, json.dumps(dict(environment), indent=2) + "\n")
            yield self
        finally:
            lock.close()

    def times(self, measure: Callable[[], dict[int, float]]) -> dict[int, float]:
        """The unmodified model's seconds by token count: measured once, then kept."""
        path = self.path / TIMES
        with suppress(FileNotFoundError):
            return {int(tokens): seconds for tokens, seconds in json.loads(path.read_text("utf-8")).items()}
        measured = measure()
        replace(path, json.dumps(measured, indent=2) + "\n")
        return measured

    def search(self, half: str, importance: str) -> Path:
        """The journal of the searches on one half by one importance."""
        return self.path / _SEARCHES / f"{half}_{importance}.log"

    def method(self, name: str) -> Path:
        """The YAML of a method: with `found` as `--config-dir`, `method=NAME` finds it."""
        return self.found / _METHODS / f"{name}.yaml"

    def table(self, name: str) -> Path:
        """The CSV of what was found that goes by this name."""
        return self.found / f"{name}.csv"

    def measured(
        self,
        what: str,
        candidate: Candidate | None,
        records: Sequence[Record],
        measure: Callable[[Record], float],
        tick: Callable[[], None],
    ) -> list[float]:
        """One number a record, each measured once and kept.

        Args:
            what: which number.
            candidate: what it is of; None for the unmodified model.
            records: the records.
            measure: gives a record's number.
            tick: called after each record.
        """
        name = "unmodified" if candidate is None else digest({"candidate": candidate.name})
        journal = Journal(self.path / _MEASURED / f"{what}-{name}.jsonl")
        journal.load()
        for record in records:
            if record.key not in journal.rows:
                about = {"dataset": record.dataset, "_id": record.id}
                named = {} if candidate is None else {"schedule": candidate.schedule.spec}
                journal.add(about | named | {what: measure(record)})
            tick()
        return [journal.rows[record.key][what] for record in records]
