"""A run's folder: what was set, where it ran, and one line a record, written once each."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.store.journal import PREDICTIONS, TRACES, Journal, Key, Rows, journal_names, journals, lines, read_rows
from lazybench.store.locks import Busy, Lock, is_held, is_restarted
from lazybench.store.writing import check_writable, replace, writing

SCORES = "scores.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
# The line that a process which failed ended with; a shard has one of its own.
FAILURE = "failed.txt"


def digest(settings: Mapping[str, Any]) -> str:
    """A short hash (12 hex digits) of everything that decides a run's results."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class RunFolder:
    """One run on disk, or one shard's view of it.

    A shard writes files of its own; when all records are there, they become one. Whoever reads a run takes its
    files together (`journals`), so it is one run at any time. The locks lie beside the folder.

    Args:
        path: `<output>/<model>/<data>/<method>/<hash>`.
        shard: the part of the records that this process runs; None for all.

    Attributes:
        predictions: one line a record.
        traces: what untimed passes saw, one line a record.
        earlier: where a rerun has put the finished run; None where there was none.
    """

    def __init__(self, path: Path, shard: Shard | None = None) -> None:
        self.path = path
        self.predictions = Journal(path / _part(PREDICTIONS, shard))
        self.traces = Journal(path / _part(TRACES, shard))
        self.earlier: Path | None = None
        self._shard = shard
        self._whole: Lock | None = None
        self._read: dict[str, Rows] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a process is at work on these records or, for a whole run, on any of them."""
        locks = {*self.path.parent.glob(f".{self.path.name}*.lock")}
        if self._shard is not None:  # the other ones of as many parts share no record with it
            parts = (Shard(part + 1, self._shard.count) for part in range(self._shard.count))
            locks -= {self._lock(part) for part in parts if part != self._shard}
        return any(map(is_held, locks))

    def check(self) -> None:
        """Raise `LazyBenchError` where the folder cannot be written, `Busy` where a process is at work in it."""
        check_writable(self.path)
        if self.is_busy and not is_restarted():
            raise Busy(f"another process is at work in {self.path}")

    @contextmanager
    def opened(
        self, config: Mapping[str, Any], environment: Mapping[str, Any], anew: bool = False
    ) -> "Iterator[RunFolder]":
        """Make or reopen the folder for this process alone, and read the records already done.

        Its `config.yaml` and `environment.json` are to say what is given, and the `commit` of a run that goes on those
        of its earlier starts, too. With `anew` a finished run is put aside, where nothing that reads runs looks.

        Raises:
            LazyBenchError: the folder cannot be written; `Busy` where another process is at work in it.
        """
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            locks = [Lock(self._lock(shard)) for shard in dict.fromkeys([None, self._shard])]
        self._whole, scores, note = locks[0], self.path / SCORES, self.path / _part(FAILURE, self._shard)
        try:
            # Of several shards that begin anew, the first one finds a finished run.
            if anew and scores.exists() and self._whole.take() and scores.exists():
                places = (self.path.with_name(f".{self.path.name}-{number}") for number in count(1))
                self.earlier = self.path.rename(next(place for place in places if not place.exists()))
            # Shards share the folder with each other, but with no process that takes it for itself.
            taken = self._whole.take() if self._shard is None else self._whole.take(shared=True) and locks[1].take()
            if not taken:
                raise Busy(f"another process is at work in {self.path}")
            self._read.clear()
            with writing(self.path):
                self.path.mkdir(exist_ok=True)
            commits = [*self._commits(), environment.get("commit")]
            environment = {**environment, "commit": ", ".join(dict.fromkeys(filter(None, commits))) or None}
            _remove([scores, note])  # rows may change from here on: they are not to look finished
            replace(self.path / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
            replace(self.path / ENVIRONMENT, json.dumps(dict(environment), indent=2) + "\n")
            if self._shard is None:
                for name in (PREDICTIONS, TRACES):
                    self._merge(name)
            with writing(self.path):
                self.predictions.load()
                self.traces.load()
            yield self
        except Busy:
            raise
        except Exception as error:
            with suppress(LazyBenchError):  # a full disk must not hide what went wrong
                replace(note, (str(error).strip().splitlines() or [type(error).__name__])[-1])
            raise
        finally:
            for lock in locks:
                lock.close()

    def done(self, name: str = PREDICTIONS) -> Rows:
        """The rows of all shards as they were when this process opened the folder."""
        if name not in self._read:
            self._read[name] = read_rows(self.path, name)
        return self._read[name]

    def failed(self, traced: bool) -> set[Key]:
        """The records that ended in an error, in their traces too where those are asked for."""
        return {key for name in journal_names(traced) for key, row in self.done(name).items() if row.get("error")}

    def runs_again(self, records: Collection[Key], traced: bool, failed: bool) -> set[Key]:
        """The records done that run again: if `failed`, or if all of `records` did, those that failed."""
        return self.failed(traced) if failed or self.failed(False).issuperset(records) else set()

    def finished(self, records: Collection[Key], traced: bool) -> dict[str, Any] | None:
        """The scores of a run that has gone through all of `records`, `traced` or not; None where it has not, or where
        it has no answer to any.
        """
        try:
            scores = json.loads((self.path / SCORES).read_text("utf-8"))
            parts = [part for name in (PREDICTIONS, TRACES) for part in journals(self.path, name)[:-1]]
            return scores if self._has(records, traced) and not parts and self._has_answers() else None
        except (OSError, ValueError, LazyBenchError):
            return None

    def finish(
        self, records: Sequence[Key], traced: bool, summarise: Callable[[Rows], Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """Where all `records` are there, make one file of the shards' and write the scores; call it while `opened`.

        Returns:
            the scores that `summarise` makes of the rows; None while records, or traces where they are to be `traced`,
            are missing, or where another shard is about to do this, or where all records failed.
        """
        if self._shard is not None:
            self._whole.release()
            if not self._whole.take():
                return None  # a shard is still at work; the last one to end finds all records there
        self._read.clear()  # this process and other shards have added rows
        if not self._has(records, traced):
            return None
        for name in (PREDICTIONS, TRACES):
            self._merge(name, records)
        if not self._has_answers():
            return None
        scores = summarise(self.done(PREDICTIONS))
        replace(self.path / SCORES, json.dumps(scores, indent=2) + "\n")
        _remove(self.path.glob(f"{Path(FAILURE).stem}*.txt"))  # of shards that others have stood in for
        return scores

    def _commits(self) -> list[str]:
        """Of the starts that have left records."""
        with suppress(OSError, ValueError):
            said = json.loads((self.path / ENVIRONMENT).read_text("utf-8")) if self.done() else {}
            return (said.get("commit") or "").split(", ")
        return []

    def _lock(self, shard: Shard | None) -> Path:
        return self.path.parent / _part(f".{self.path.name}.lock", shard)

    def _has(self, records: Collection[Key], traced: bool) -> bool:
        return all(set(records) <= self.done(name).keys() for name in journal_names(traced))

    def _has_answers(self) -> bool:
        return not all(row.get("error") for row in self.done().values())

    def _merge(self, name: str, records: Iterable[Key] | None = None) -> None:
        """Make one file of the shards' rows, in the order of `records`, or as they come."""
        if parts := journals(self.path, name)[:-1]:
            rows = self.done(name)
            replace(self.path / name, lines(rows[key] for key in records or rows if key in rows))
            _remove(parts)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with writing(path):
            path.unlink(missing_ok=True)


def _part(name: str, shard: Shard | None) -> str:
    stem, _, suffix = name.rpartition(".")
    return name if shard is None else f"{stem}-{shard}.{suffix}"
