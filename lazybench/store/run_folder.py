"""A run's folder: its settings, its environment, and one line a record."""

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
from lazybench.store.locks import Busy, Lock, is_locked
from lazybench.store.writing import check_writable, replace, writing

SCORES = "scores.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
# Has the last line of a failed process; each shard has its own file.
FAILURE = "failed.txt"


class RunFolder:
    """One run on disk, or one shard's view of it.

    A shard writes files of its own, which are merged when all records are there. Readers of a run read all its files
    (`journals`). The lock files lie beside the folder.
    """

    def __init__(self, path: Path, shard: Shard | None = None) -> None:
        self.path = path  # `<output>/<model>/<data>/<method>/<hash>`
        self.predictions = Journal(path / _part(PREDICTIONS, shard))  # one line a record
        self.traces = Journal(path / _part(TRACES, shard))  # results of untimed passes, one line a record
        self.earlier: Path | None = None  # where a rerun has moved the finished run, if there was one
        self._shard = shard  # the part of the records that this process runs; None for all
        self._run_lock: Lock | None = None
        self._read: dict[str, Rows] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a process works on these records or, for a whole run, on any of them."""
        locks = {*self.path.parent.glob(f".{self.path.name}*.lock")}
        if self._shard is not None:  # other parts of the same number share no record with it
            parts = (Shard(part + 1, self._shard.count) for part in range(self._shard.count))
            locks -= {self._lock(part) for part in parts if part != self._shard}
        return any(map(is_locked, locks))

    def check(self) -> None:
        """Raise `LazyBenchError` if the folder cannot be written, `Busy` if another process works in it."""
        check_writable(self.path)
        if self.is_busy:
            raise Busy(f"another process is at work in {self.path}")

    @contextmanager
    def opened(self, config: Mapping[str, Any], environment: Mapping[str, Any], anew: bool = False) -> Iterator[None]:
        """Make or reopen the folder for this process alone, and read the records already done.

        Args:
            config: what `config.yaml` gets.
            environment: what `environment.json` gets; a resumed run keeps the commits of its earlier starts.
            anew: rename a finished run, to a name that readers of runs ignore.

        Raises:
            LazyBenchError: the folder cannot be written.
            Busy: another process works in it.
        """
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            locks = [Lock(self._lock(shard)) for shard in dict.fromkeys([None, self._shard])]
        self._run_lock, scores, note = locks[0], self.path / SCORES, self.path / _part(FAILURE, self._shard)
        try:
            # Of several shards that begin anew, the first one finds a finished run.
            if anew and scores.exists() and self._run_lock.acquire() and scores.exists():
                names = (self.path.with_name(f".{self.path.name}-{number}") for number in count(1))
                self.earlier = self.path.rename(next(path for path in names if not path.exists()))
            # Shards share the folder with each other, but not with a process that runs all records.
            if self._shard is None:
                acquired = self._run_lock.acquire()
            else:
                acquired = self._run_lock.acquire(shared=True) and locks[1].acquire()
            if not acquired:
                raise Busy(f"another process is at work in {self.path}")
            self._read.clear()
            with writing(self.path):
                self.path.mkdir(exist_ok=True)
            # Earlier starts count if they have left records.
            earlier = read_settings(self.path)[1].get("commit") if self.done() else None
            commits = [*(earlier or "").split(", "), environment.get("commit")]
            environment = {**environment, "commit": ", ".join(dict.fromkeys(filter(None, commits))) or None}
            _remove([scores, note])  # rows may change from here on, so the run is no longer finished
            replace(self.path / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
            replace(self.path / ENVIRONMENT, json.dumps(dict(environment), indent=2) + "\n")
            with writing(self.path):
                self.predictions.load()
                self.traces.load()
            yield
        except Busy:
            raise
        except Exception as error:
            with suppress(LazyBenchError):  # a full disk must not hide the error
                replace(note, (str(error).strip().splitlines() or [type(error).__name__])[-1])
            raise
        finally:
            for lock in locks:
                lock.close()

    def done(self, name: str = PREDICTIONS) -> Rows:
        """Return the rows of all shards as they were when this process opened the folder."""
        if name not in self._read:
            self._read[name] = read_rows(self.path, name)
        return self._read[name]

    def records_to_rerun(self, records: Collection[Key], traced: bool, failed: bool) -> set[Key]:
        """Return the records to run again: those that failed, if `failed` is set or all of `records` did.

        With `traced`, a record whose trace failed counts as well.
        """
        errors = [{key for key, row in self.done(name).items() if row.get("error")} for name in journal_names(traced)]
        return set().union(*errors) if failed or errors[0].issuperset(records) else set()

    def finished(self, records: Collection[Key], traced: bool) -> dict[str, Any] | None:
        """Return the scores of a finished run of all `records`; None if any is missing, or all failed."""
        try:
            scores = json.loads((self.path / SCORES).read_text("utf-8"))
            parts = [part for name in (PREDICTIONS, TRACES) for part in journals(self.path, name)[:-1]]
            return scores if self._has(records, traced) and not parts and self._has_answers() else None
        except (OSError, ValueError, LazyBenchError):
            return None

    def finish(
        self, records: Sequence[Key], traced: bool, summarise: Callable[[Rows], Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """Merge the shards' files and write the scores, if all `records` are there; call it while `opened`.

        Returns:
            the scores that `summarise` makes of the rows; None while records, or their traces if `traced`, are missing,
            while another shard works, or if all records failed.
        """
        if self._shard is not None:
            self._run_lock.release()
            if not self._run_lock.acquire():
                return None  # another shard still works; the last one to end finds all records there
        self._read.clear()  # this process and other shards have added rows
        if not self._has(records, traced):
            return None
        for name in (PREDICTIONS, TRACES):
            self._merge(name, records)
        if not self._has_answers():
            return None
        scores = summarise(self.done(PREDICTIONS))
        replace(self.path / SCORES, json.dumps(scores, indent=2) + "\n")
        _remove(self.path.glob(f"{Path(FAILURE).stem}*.txt"))  # of shards whose records others have run
        return scores

    def _lock(self, shard: Shard | None) -> Path:
        return self.path.parent / _part(f".{self.path.name}.lock", shard)

    def _has(self, records: Collection[Key], traced: bool) -> bool:
        return all(set(records) <= self.done(name).keys() for name in journal_names(traced))

    def _has_answers(self) -> bool:
        return not all(row.get("error") for row in self.done().values())

    def _merge(self, name: str, records: Iterable[Key]) -> None:
        """Merge the shards' rows into one file, in the order of `records`."""
        if parts := journals(self.path, name)[:-1]:
            rows = self.done(name)
            replace(self.path / name, lines(rows[key] for key in records if key in rows))
            _remove(parts)


def read_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a run's settings and environment; empty where a file cannot be read."""
    contents = []
    for name, parse in ((CONFIG, yaml.safe_load), (ENVIRONMENT, json.loads)):
        try:
            content = parse((folder / name).read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            content = None
        contents.append(content if isinstance(content, dict) else {})
    return contents[0], contents[1]


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with writing(path):
            path.unlink(missing_ok=True)


def _part(name: str, shard: Shard | None) -> str:
    stem, _, suffix = name.rpartition(".")
    return name if shard is None else f"{stem}-{shard}.{suffix}"
