"""A run's folder: what was set, where it ran, and one line a record, written once each."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
# In front of the names of the files that hold a rerun's rows until all are there.
RERUN = "rerun-"
_LOCK = ".lock"


def digest(settings: Mapping[str, Any]) -> str:
    """A short hash (12 hex digits) of everything that decides a run's results."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class RunFolder:
    """One run on disk, or one shard's view of it.

    A shard writes files of its own; when all records are there, they become one. Whoever reads a run takes its
    files together (`journals`), so it is one run at any time.

    A rerun goes through the records once more, into files of its own. They take the places of the earlier ones at its
    end, so that a rerun that is stopped takes nothing away, and goes on when it is started again.

    Args:
        path: `<output>/<model>/<data>/<method>/<hash>`.
        shard: the part of the records that this process runs; None for all.
        rerun: whether it runs them again.

    Attributes:
        predictions: one line a record.
        traces: what untimed passes saw, one line a record.
    """

    def __init__(self, path: Path, shard: Shard | None = None, rerun: bool = False) -> None:
        self.path = path
        self._prefix = RERUN if rerun else ""
        self.predictions = Journal(path / _part(self._prefix + PREDICTIONS, shard))
        self.traces = Journal(path / _part(self._prefix + TRACES, shard))
        self._shard = shard
        self._rerun = rerun
        self._about: dict[str, str] = {}
        self._whole: Lock | None = None
        self._read: dict[str, Rows] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a process is at work on just these records."""
        return is_held(self.path / _lock_name(self._shard))

    def check(self) -> None:
        """Look whether the folder can be written and no process is at work in it, without taking it.

        Raises:
            LazyBenchError: it cannot be written.
            Busy: another process is at work in it.
        """
        check_writable(self.path)
        if (self.is_busy or is_held(self.path / _LOCK)) and not is_restarted():
            raise self._busy()

    @contextmanager
    def opened(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[RunFolder]:
        """Make or reopen the folder for this process alone, and read the records already done.

        Raises:
            LazyBenchError: the folder cannot be written.
            Busy: another process is at work in it.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            locks = [Lock(self.path / name) for name in dict.fromkeys([_LOCK, _lock_name(self._shard)])]
        try:
            self._whole = locks[0]
            self._about = {
                CONFIG: yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True),
                ENVIRONMENT: json.dumps(dict(environment), indent=2) + "\n",
            }
            # Shards share the folder with each other, but with no process that takes it for itself.
            taken = self._whole.exclusive() if self._shard is None else self._whole.shared() and locks[1].exclusive()
            if not taken or self._is_cut_otherwise():
                raise self._busy()
            self._read.clear()
            if not self._rerun or not (self.path / CONFIG).exists():
                self._begin_change()
            if self._shard is None:
                for name in (PREDICTIONS, TRACES):
                    self._merge(self._prefix + name)
            with writing(self.path):
                self.predictions.load()
                self.traces.load()
            yield self
        finally:
            for lock in locks:
                lock.close()

    def done(self, name: str = PREDICTIONS) -> Rows:
        """The rows of all shards as they were when this process opened the folder; of a rerun those it has run again.

        Raises:
            LazyBenchError: a line before the last one of a file is damaged.
        """
        return self._rows(self._prefix + name)

    def failed(self, traced: bool) -> set[Key]:
        """The records that ended in an error, in their traces too where those are asked for."""
        return {key for name in journal_names(traced) for key, row in self.done(name).items() if row.get("error")}

    def finished(self, records: Collection[Key], traced: bool) -> dict[str, Any] | None:
        """The scores of a run that has gone through all its records, else None.

        Args:
            records: dataset and id of each.
            traced: whether all of them must have been traced too.
        """
        try:
            scores = json.loads((self.path / SCORES).read_text("utf-8"))
            complete = self._has(records, traced) and not self._parts(PREDICTIONS) and not self._parts(TRACES)
        except (OSError, ValueError, LazyBenchError):
            return None
        return scores if complete else None

    def finish(
        self, records: Sequence[Key], traced: bool, summarise: Callable[[Rows], Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """Where all records are there, make one file of the shards' and write the scores; call it while `opened`.

        A rerun puts its rows into the places of the earlier ones before that.

        Args:
            records: dataset and id of all the run's records, in their order.
            traced: whether all of them must have been traced too.
            summarise: makes the scores of the rows.

        Returns:
            the scores; None while records are missing, or where another shard is about to do this.
        """
        if self._shard is not None:
            self._whole.release()
            if not self._whole.exclusive():
                return None  # a shard is still at work; the last one to end finds all records there
        self._read.clear()  # this process and other shards have added rows
        taken = self._take_places(records, traced) if self._rerun else []
        scores = None
        if self._has(records, traced):
            for name in (PREDICTIONS, TRACES):
                self._merge(name, records)
            scores = summarise(self._rows(PREDICTIONS))
            replace(self.path / SCORES, json.dumps(scores, indent=2) + "\n")
        # Last of all: if this is stopped before, the rerun goes on from here and not from its start.
        _remove(taken)
        return scores

    def _busy(self) -> Busy:
        return Busy(f"another process is at work in {self.path}")

    def _is_cut_otherwise(self) -> bool:
        """Whether shards of another number of parts are at work: they have records of this one's."""
        if self._shard is None:
            return False
        others = [path for path in self.path.glob(f"{_LOCK}-*") if not path.name.endswith(f"of{self._shard.count}")]
        return any(map(is_held, others))

    def _begin_change(self) -> None:
        """Say what the rows are made with from here on, and make sure that they do not look finished."""
        _remove([self.path / SCORES])
        for name, text in self._about.items():
            replace(self.path / name, text)

    def _rows(self, name: str) -> Rows:
        """The rows in all files of `name`, read once until something may have changed."""
        if name not in self._read:
            self._read[name] = read_rows(self.path, name)
        return self._read[name]

    def _has(self, records: Collection[Key], traced: bool) -> bool:
        return all(set(records) <= self._rows(name).keys() for name in journal_names(traced))

    def _parts(self, name: str) -> list[Path]:
        return journals(self.path, name)[:-1]

    def _merge(self, name: str, records: Iterable[Key] | None = None) -> None:
        """Make one file of the shards' rows, in the order of `records`, or as they come."""
        if parts := self._parts(name):
            self._write(name, self._rows(name), records)
            _remove(parts)

    def _write(self, name: str, rows: Rows, records: Iterable[Key] | None) -> None:
        replace(self.path / name, lines(rows[key] for key in records or rows if key in rows))

    def _take_places(self, records: Sequence[Key], traced: bool) -> list[Path]:
        """Put the rows of reruns that have gone through all their records into the places of the earlier ones.

        Where no traces were taken again, those of the earlier rows go: they are not about the new ones.

        Returns:
            the reruns' files, which are no longer needed.
        """
        again = {name: self.done(name) for name in (PREDICTIONS, TRACES)}
        complete = [
            (shard, own)
            for shard in {self._shard, *map(shard_of, journals(self.path, RERUN + PREDICTIONS))}
            for own in [set(records if shard is None else shard.of(records))]
            if all(own <= again[name].keys() for name in journal_names(traced))
        ]
        taken = {key for _, own in complete for key in own}
        if not taken:
            return []
        self._begin_change()
        for name, rows in again.items():
            # A rerun of all records also replaces a damaged file, which cannot be read.
            earlier = self._rows(name) if set(records) - taken else {}
            rows = {key: row for key, row in earlier.items() if key not in taken} | {
                key: row for key, row in rows.items() if key in taken
            }
            if rows:
                self._write(name, rows, records)
            _remove([*self._parts(name), *([] if rows else [self.path / name])])
        self._read.clear()
        return [self.path / _part(RERUN + name, shard) for shard, _ in complete for name in (PREDICTIONS, TRACES)]


def shard_of(path: Path) -> Shard | None:
    """The shard that a file is of; None for the whole run."""
    found = re.search(r"-(\d+)of(\d+)$", path.stem)
    return None if found is None else Shard(int(found[1]), int(found[2]))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with writing(path):
            path.unlink(missing_ok=True)


def _part(name: str, shard: Shard | None) -> str:
    stem, suffix = name.split(".")
    return name if shard is None else f"{stem}-{shard}.{suffix}"


def _lock_name(shard: Shard | None) -> str:
    return _LOCK if shard is None else f"{_LOCK}-{shard}"
