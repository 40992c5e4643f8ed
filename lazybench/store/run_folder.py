"""A run's folder: its settings, its environment, and one line per record."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.store.journal import JOURNALS, Journal, Rows, read_rows
from lazybench.store.locks import Busy, Lock, is_locked
from lazybench.store.writing import check_writable, replace, writing

SCORES = "scores.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
# Contains the last line of a failed process's error; each shard has its own file.
FAILURE = "failed.txt"


class RunFolder:
    """One run on disk, or one shard's view of it.

    Each shard writes its own files, and readers of a run read all of them. The lock files are beside the folder.
    """

    def __init__(self, path: Path, shard: Shard | None = None) -> None:
        self.path = path  # `<output>/<model>/<data>/<method>/<hash>`
        # The answers, traces and times that this process writes, one line per record, by file name.
        self.journals = {name: Journal(path / _part(name, shard)) for name in JOURNALS}
        self._shard = shard  # the part of the records that this process runs; None for all

    @property
    def is_busy(self) -> bool:
        """Whether a process works on these records or, for a whole run, on any of them."""
        locks = {*self.path.parent.glob(f".{self.path.name}*.lock")}
        if self._shard is not None:  # other parts of the same split share no record with it
            parts = (Shard(part + 1, self._shard.count) for part in range(self._shard.count))
            locks -= {self._lock(part) for part in parts if part != self._shard}
        return any(map(is_locked, locks))

    def check(self) -> None:
        """Raise `LazyBenchError` if the folder cannot be written, `Busy` if another process works in it."""
        check_writable(self.path)
        if self.is_busy:
            raise Busy(f"another process is at work in {self.path}")

    def rows(self, name: str) -> Rows:
        """Read the rows of a journal that this process and all others have written."""
        return read_rows(self.path, name)

    @contextmanager
    def opened(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[None]:
        """Make or reopen the folder, lock it for this process, and read this process's rows.

        Args:
            config: contents of `config.yaml`.
            environment: contents of `environment.json`.

        Raises:
            LazyBenchError: the folder cannot be written.
            Busy: another process works in it.
        """
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            locks = [Lock(self._lock(shard)) for shard in dict.fromkeys([None, self._shard])]
        note = self.path / _part(FAILURE, self._shard)
        try:
            # Shards share the folder with each other, but not with a process that runs all records.
            if not (locks[0].acquire(shared=self._shard is not None) and locks[-1].acquire()):
                raise Busy(f"another process is at work in {self.path}")
            with writing(self.path):
                self.path.mkdir(exist_ok=True)
            _remove([note, self.path / SCORES])  # rows may change from here on
            replace(self.path / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
            replace(self.path / ENVIRONMENT, json.dumps(dict(environment), indent=2) + "\n")
            with writing(self.path):
                for journal in self.journals.values():
                    journal.load()
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

    def write_scores(self, scores: Mapping[str, Any]) -> None:
        """Write the means of a run whose records are all answered, unless they are there."""
        path, text = self.path / SCORES, json.dumps(scores, indent=2) + "\n"
        if path.exists() and path.read_text("utf-8") == text:
            return
        replace(path, text)
        _remove(self.path.glob(f"{Path(FAILURE).stem}*.txt"))  # of shards whose records others have run

    def _lock(self, shard: Shard | None) -> Path:
        return self.path.parent / _part(f".{self.path.name}.lock", shard)


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
