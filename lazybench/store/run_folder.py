"""A run's folder: what was set, where it ran, and one line a record, written once each."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.store.locks import Busy, Lock, is_held, is_restarted

PREDICTIONS = "predictions.jsonl"
TRACES = "traces.jsonl"
SCORES = "scores.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
_LOCK = ".lock"
# In front of the names of the files that hold a rerun's rows until all are there.
_RERUN = "rerun-"

Key = tuple[str, str]
Rows = dict[Key, dict[str, Any]]


def digest(settings: Mapping[str, Any]) -> str:
    """A short hash (12 hex digits) of everything that decides a run's results."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Journal:
    """A JSON Lines file that grows by one record at a time, each record once.

    Args:
        path: the file.

    Attributes:
        rows: the records by dataset and id.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: Rows = {}

    def load(self) -> None:
        """Read what is on disk; a last line that was cut short is dropped, and its record runs again.

        Raises:
            LazyBenchError: a line before the last one is damaged.
        """
        if self.path.exists():
            os.truncate(self.path, self.read())

    def read(self) -> int:
        """Read what is on disk into `rows` and leave the file alone; returns the bytes of its whole lines.

        Raises:
            LazyBenchError: a line before the last one is damaged; `rows` then holds those that are not.
        """
        self.rows, whole, damaged, number = {}, 0, None, 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                row = _parse(line)
                if row is None:
                    damaged = damaged or number
                    continue
                self.rows[row["dataset"], row["_id"]] = row
                whole += len(line)
        if damaged is not None and damaged < number:
            raise LazyBenchError(
                f"{self.path}:{damaged} is not a record, with more lines behind it: move the file away to start anew"
            )
        return whole

    def add(self, row: dict[str, Any]) -> None:
        """Append one record and make sure that it is on disk.

        Raises:
            LazyBenchError: it cannot be written.
        """
        with _writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(_line(row))
            file.flush()
            os.fsync(file.fileno())
        self.rows[row["dataset"], row["_id"]] = row

    def drop(self, keys: Collection[Key]) -> None:
        """Leave out some records, in one step."""
        if self.rows.keys() & keys:
            self.rows = {key: row for key, row in self.rows.items() if key not in keys}
            replace(self.path, "".join(map(_line, self.rows.values())))


def journals(folder: Path, name: str) -> list[Path]:
    """The files of a folder that hold the rows of `name`: those of shards not yet merged, then the whole run's.

    Read them in this order, and take none of them for granted: while they are read, a merge may move rows from the
    first ones into the last.
    """
    stem, suffix = name.split(".")
    parts = [path for path in folder.glob(f"{stem}-*.{suffix}") if re.fullmatch(rf"{stem}-\d+of\d+", path.stem)]
    return [*sorted(parts), folder / name]


def run_folders(root: Path) -> list[Path]:
    """Folders below `root` that hold a run, or what is left of one: its records, or two of its other files.

    Folders with a dot in front are passed over.
    """
    found = []
    for place, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".")]
        folder = Path(place)
        others = {CONFIG, ENVIRONMENT, SCORES}.intersection(files)
        if len(others) > 1 or any(path.name in files for path in journals(folder, PREDICTIONS)):
            found.append(folder)
    return sorted(found)


def settled(rows: Iterable[dict[str, Any]]) -> Rows:
    """Rows by dataset and id; of several of one record the last holds, but no failure takes the place of an answer."""
    found: Rows = {}
    for row in rows:
        key = row["dataset"], row["_id"]
        if key not in found or not row.get("error") or found[key].get("error"):
            found[key] = row
    return found


def replace(path: Path, text: str) -> None:
    """Write a file in one step, so that it is never seen half-written.

    Raises:
        LazyBenchError: it cannot be written; the file that was there stays.
    """
    # Shards on several machines may write the same file, under the same process id.
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    try:
        with _writing(path), open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with _writing(path):
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """See that a folder can be written or made, as far as can be told without doing it.

    Raises:
        LazyBenchError: it cannot.
    """
    place = next(place for place in (path, *path.parents) if place.exists())
    with _writing(path):
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        system = os.statvfs(place)
        if system.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if system.f_blocks and not system.f_bavail:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def scored_records(folder: Path) -> int | None:
    """How many records the scores of a run are about, failed ones included; None where there are no such scores."""
    try:
        datasets = json.loads((folder / SCORES).read_text("utf-8"))["datasets"].values()
        return sum(of["records"] + of["failed"] for of in datasets)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say in one line that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        kept = "; the records already there stay valid" if _holds_records(path) else ""
        raise LazyBenchError(f"{path} cannot be written: {error.strerror or error}{kept}") from error


def _holds_records(path: Path) -> bool:
    """Whether a run's folder, or that of one of its files, has records in it."""
    for file in journals(path if path.is_dir() else path.parent, PREDICTIONS):
        with suppress(OSError), open(file, "rb") as rows:
            if _parse(rows.readline()) is not None:
                return True
    return False


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record on a whole, sound line, else None."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) and {"dataset", "_id"} <= row.keys() else None


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
        self._prefix = _RERUN if rerun else ""
        self.predictions = Journal(path / _part(self._prefix + PREDICTIONS, shard))
        self.traces = Journal(path / _part(self._prefix + TRACES, shard))
        self._shard = shard
        self._rerun = rerun
        self._about: dict[str, str] = {}
        self._whole: Lock | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a process is at work on just these records."""
        return is_held(self.path / _lock_name(self._shard))

    def _is_cut_otherwise(self) -> bool:
        """Whether shards of another number of parts are at work: they have records of this one's."""
        if self._shard is None:
            return False
        others = [path for path in self.path.glob(f"{_LOCK}-*") if not path.name.endswith(f"of{self._shard.count}")]
        return any(map(is_held, others))

    def check(self) -> None:
        """See that the folder can be written and no process has it, as far as can be told without taking it.

        Raises:
            LazyBenchError: it cannot be written.
            Busy: another process is at work in it.
        """
        check_writable(self.path)
        if (self.is_busy or is_held(self.path / _LOCK)) and not is_restarted():
            raise self._busy()

    def _busy(self) -> Busy:
        return Busy(f"another process is at work in {self.path}")

    def survey(self, records: int | None) -> tuple[int, str | None]:
        """How many of these records are done, and what is wrong with the files they are in.

        Args:
            records: how many there are to do; None where that is not known.
        """
        rows, damage = [], None
        for path in journals(self.path, PREDICTIONS):
            shard = _shard_of(path)
            if shard is not None and self._shard not in (None, shard) and shard.count == self._shard.count:
                continue  # other records than these
            journal = Journal(path)
            try:
                journal.read()
            except FileNotFoundError:
                continue
            except (OSError, LazyBenchError) as error:
                damage = str(error)
            rows += journal.rows.values()
        done, scored = len(settled(rows)), scored_records(self.path)
        lost = max(0, (scored or 0) - done)
        if self._shard is not None and records is not None:
            done = max(0, min(done, records - lost))  # the others are of other shards
        if lost and damage is None:
            damage = f"{lost} of the {scored} records that its scores are about are gone"
        return done, damage

    @property
    def rerun_records(self) -> int | None:
        """How many records a rerun that has not come to its end has run again; None where there is none."""
        files = [path for path in journals(self.path, _RERUN + PREDICTIONS) if path.exists()]
        with suppress(LazyBenchError):
            return len(self._rows(_RERUN + PREDICTIONS)) if files else None
        return None

    @contextmanager
    def opened(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[RunFolder]:
        """Make or reopen the folder for this process alone, and read the records already done.

        Raises:
            LazyBenchError: the folder cannot be written.
            Busy: another process is at work in it.
        """
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            locks = [Lock(self.path / _LOCK)]
            if self._shard is not None:
                locks.append(Lock(self.path / _lock_name(self._shard)))
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
            if not self._rerun or not (self.path / CONFIG).exists():
                self._begin_change()
            if self._shard is None:
                for name in (PREDICTIONS, TRACES):
                    self._merge(self._prefix + name, self.done(name))
            with _writing(self.path):
                self.predictions.load()
                self.traces.load()
            yield self
        finally:
            for lock in locks:
                lock.close()

    def _begin_change(self) -> None:
        """Say what the rows are made with from here on, and make sure that they do not look finished."""
        with _writing(self.path):
            (self.path / SCORES).unlink(missing_ok=True)
        for name, text in self._about.items():
            replace(self.path / name, text)

    def done(self, name: str = PREDICTIONS) -> Rows:
        """The rows of all shards so far; of a rerun those that it has run again.

        Raises:
            LazyBenchError: a line before the last one of a file is damaged.
        """
        return self._rows(self._prefix + name)

    def _rows(self, name: str) -> Rows:
        rows: list[dict[str, Any]] = []
        for path in journals(self.path, name):
            journal = Journal(path)
            with suppress(FileNotFoundError):
                journal.read()
            rows += journal.rows.values()
        return settled(rows)

    def finished(self, records: Collection[Key], traced: bool) -> dict[str, Any] | None:
        """The scores of a run that has gone through all its records, else None.

        Args:
            records: dataset and id of each.
            traced: whether all of them must have been traced too.
        """
        try:
            scores = json.loads((self.path / SCORES).read_text("utf-8"))
            complete = all(set(records) <= self._rows(name).keys() for name in journal_names(traced))
            complete &= not self._parts(PREDICTIONS) and not self._parts(TRACES)
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
        taken = self._take_places(records, traced) if self._rerun else []
        scores = None
        if all(set(records) <= self._rows(name).keys() for name in journal_names(traced)):
            for name in (PREDICTIONS, TRACES):
                self._merge(name, records)
            scores = summarise(self._rows(PREDICTIONS))
            replace(self.path / SCORES, json.dumps(scores, indent=2) + "\n")
        # Last of all: whatever stops this before, the rerun is done again from here and not from its start.
        _remove(taken)
        return scores

    def _take_places(self, records: Sequence[Key], traced: bool) -> list[Path]:
        """Put the rows of reruns that have gone through all their records into the places of the earlier ones.

        Where no traces were taken again, those of the earlier rows go: they are not about the new ones.

        Returns:
            the reruns' files, which are no longer needed.
        """
        again = {name: self.done(name) for name in (PREDICTIONS, TRACES)}
        complete = [
            (shard, own)
            for shard in {self._shard, *map(_shard_of, journals(self.path, _RERUN + PREDICTIONS))}
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
                replace(self.path / name, "".join(_line(rows[key]) for key in records if key in rows))
            _remove([*self._parts(name), *([] if rows else [self.path / name])])
        return [self.path / _part(_RERUN + name, shard) for shard, _ in complete for name in (PREDICTIONS, TRACES)]

    def _parts(self, name: str) -> list[Path]:
        return journals(self.path, name)[:-1]

    def _merge(self, name: str, records: Iterable[Key]) -> None:
        parts = self._parts(name)
        if not parts:
            return
        rows = self.done(name)
        replace(self.path / name, "".join(_line(rows[key]) for key in records if key in rows))
        _remove(parts)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with _writing(path):
            path.unlink(missing_ok=True)


def journal_names(traced: bool) -> tuple[str, ...]:
    """The journals that a run needs to be finished: with its traces or without."""
    return (PREDICTIONS, TRACES) if traced else (PREDICTIONS,)


def _part(name: str, shard: Shard | None) -> str:
    stem, suffix = name.split(".")
    return name if shard is None else f"{stem}-{shard}.{suffix}"


def _shard_of(path: Path) -> Shard | None:
    """The shard that a file is of; None for the whole run."""
    found = re.search(r"-(\d+)of(\d+)$", path.stem)
    return None if found is None else Shard(int(found[1]), int(found[2]))


def _lock_name(shard: Shard | None) -> str:
    return _LOCK if shard is None else f"{_LOCK}-{shard}"
