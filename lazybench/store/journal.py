"""Append records to JSON Lines files, and read them back."""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from lazybench.errors import LazyBenchError
from lazybench.store.writing import replace, writing

PREDICTIONS, TRACES, TIMES = JOURNALS = "predictions.jsonl", "traces.jsonl", "times.jsonl"

Key = tuple[str, str]
Rows = dict[Key, dict[str, Any]]


class Journal:
    """A JSON Lines file with one row per record; `rows` has them by dataset and id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: Rows = {}
        self._num_lines = self._num_bytes = 0  # that have been read

    def load(self, mend: bool = True) -> None:
        """Read the lines that were appended since the last call; the file may be missing.

        A last line that was cut short is ignored, so its record runs again. With `mend` the file is truncated before
        that line, so that rows can be appended.

        Raises:
            LazyBenchError: a line before the last one is damaged.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(self._num_bytes)
                content = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            content = []
        for number, line in enumerate(content, start=1):
            if (row := _parse(line)) is not None:
                self.rows[row["dataset"], row["_id"]] = row
                self._num_lines += 1
                self._num_bytes += len(line)
            elif number < len(content):
                raise LazyBenchError(
                    f"{self.path}:{self._num_lines + 1} is not a record, and more lines follow: move the file away to "
                    "start again"
                )
            elif mend:
                os.truncate(self.path, self._num_bytes)

    def add(self, row: dict[str, Any]) -> None:
        """Append a record and sync it to disk; raises `LazyBenchError` if it cannot be written."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(lines([row]))
            file.flush()
            os.fsync(file.fileno())
        self.rows[row["dataset"], row["_id"]] = row

    def drop(self, keys: Collection[Key]) -> None:
        """Remove records, rewriting the file in one step."""
        if self.rows.keys() & keys:
            self.rows = {key: row for key, row in self.rows.items() if key not in keys}
            replace(self.path, lines(self.rows.values()))
            self._num_lines = self._num_bytes = 0


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Format rows as JSON Lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def journals(folder: Path, name: str) -> list[Path]:
    """Return the files of a folder with the rows of `name`: those of shards, and the run's own; any may be missing."""
    stem, suffix = name.split(".")
    parts = [path for path in folder.glob(f"{stem}-*.{suffix}") if re.fullmatch(rf"{stem}-\d+of\d+", path.stem)]
    return [*sorted(parts), folder / name]


def read_rows(folder: Path, name: str) -> Rows:
    """Read the rows of `name` from all of a folder's files.

    A record's later row replaces an earlier one, but an error never replaces an answer.

    Raises:
        LazyBenchError: a line before the last one of a file is damaged.
    """
    rows: Rows = {}
    for path in journals(folder, name):
        journal = Journal(path)
        journal.load(mend=False)
        for key, row in journal.rows.items():
            if key not in rows or not row.get("error") or rows[key].get("error"):
                rows[key] = row
    return rows


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) and {"dataset", "_id"} <= row.keys() else None
