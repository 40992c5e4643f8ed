"""A run's folder: what was set, where it ran, and one line a record, written once each."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lazybench.errors import LazyBenchError

PREDICTIONS = "predictions.jsonl"
TRACES = "traces.jsonl"
SCORES = "scores.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"


def digest(settings: Mapping[str, Any]) -> str:
    """A short hash (12 hex digits) of everything that decides a run's results."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Journal:
    """A JSON Lines file that grows by one record at a time, each record once.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}

    def load(self) -> None:
        """Read what is on disk; a last line that was cut short is dropped, and its record runs again.

        Raises:
            LazyBenchError: a line before the last one is damaged.
        """
        if self.path.exists():
            os.truncate(self.path, self.read())

    def read(self) -> int:
        """Read what is on disk into `rows` and leave the file alone; returns the bytes of its whole lines."""
        self.rows, whole = {}, 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                row = _parse(line)
                if row is None:
                    if file.read(1):
                        raise LazyBenchError(
                            f"{self.path}:{number} is not a record, with more lines behind it: move the file away "
                            "to start anew"
                        )
                    break
                self.rows[row["dataset"], row["_id"]] = row
                whole += len(line)
        return whole

    def add(self, row: dict[str, Any]) -> None:
        """Append one record and make sure that it is on disk.

        Raises:
            LazyBenchError: it cannot be written.
        """
        with _writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[row["dataset"], row["_id"]] = row


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say in one line that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise LazyBenchError(
            f"{path} cannot be written: {error.strerror or error}; the records already there stay valid"
        ) from error


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record on a whole, sound line, else None."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) and {"dataset", "_id"} <= row.keys() else None


class RunFolder:
    """One run on disk.

    Args:
        path: `<output>/<model>/<data>/<method>/<hash>`.

    Attributes:
        predictions: one line a record.
        traces: what untimed passes saw, one line a record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.predictions = Journal(path / PREDICTIONS)
        self.traces = Journal(path / TRACES)

    @contextmanager
    def opened(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[RunFolder]:
        """Make or reopen the folder for this process alone, and read the records already done.

        Raises:
            LazyBenchError: the folder cannot be written, or another process is at work in it.
        """
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "w")  # noqa: SIM115  (held to the end of the run)
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LazyBenchError(f"another process is at work in {self.path}: wait for it to end") from None
            self._write(CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
            self._write(ENVIRONMENT, json.dumps(dict(environment), indent=2) + "\n")
            with _writing(self.path):
                self.predictions.load()
                self.traces.load()
            yield self

    def finished(self, records: set[tuple[str, str]], traced: bool) -> dict[str, Any] | None:
        """The scores of a run that has gone through all its records, else None.

        Args:
            records: dataset and id of each.
            traced: whether all of them must have been traced too.
        """
        try:
            scores = json.loads((self.path / SCORES).read_text("utf-8"))
            for journal in [self.predictions, self.traces] if traced else [self.predictions]:
                journal.read()
                if not records <= journal.rows.keys():
                    return None
        except (OSError, ValueError, LazyBenchError):
            return None
        return scores

    def finish(self, scores: Mapping[str, Any]) -> None:
        """Write the scores, which also marks the run as finished."""
        self._write(SCORES, json.dumps(scores, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        """Replace a file in one step, so that it is never seen half-written."""
        temporary = self.path / f".{name}.{os.getpid()}"
        with _writing(self.path / name):
            temporary.write_text(text, "utf-8")
            os.replace(temporary, self.path / name)
