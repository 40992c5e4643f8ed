"""Records on disk: JSON Lines files that grow by one record at a time."""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lazybench.errors import LazyBenchError
from lazybench.store.writing import replace, writing

PREDICTIONS, TRACES = "predictions.jsonl", "traces.jsonl"
# Columns of a run's rows that hold times, in seconds.
WALL_TIMES = ("ttft_s", "generation_s", "decode_step_s")
CPU_TIMES = ("ttft_cpu_s", "generation_cpu_s")

Key = tuple[str, str]
Rows = dict[Key, dict[str, Any]]


class Journal:
    """A JSON Lines file that grows by one record at a time, each record once; `rows` are by dataset and id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: Rows = {}

    def load(self, mend: bool = True) -> None:
        """Read what is on disk, if anything. A last line that was cut short is passed over, and its record runs again.

        Args:
            mend: also cut that line off the file, to go on behind it.

        Raises:
            LazyBenchError: a line before the last one is damaged.
        """
        try:
            found = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            found = []
        self.rows, whole = {}, 0
        for number, line in enumerate(found, start=1):
            if (row := _parse(line)) is not None:
                self.rows[row["dataset"], row["_id"]] = row
                whole += len(line)
            elif number < len(found):
                raise LazyBenchError(
                    f"{self.path}:{number} is not a record, with more lines behind it: move the file away to start anew"
                )
        if mend and found:
            os.truncate(self.path, whole)

    def add(self, row: dict[str, Any]) -> None:
        """Append one record and make sure that it is on disk; raises `LazyBenchError` where it cannot be written."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(lines([row]))
            file.flush()
            os.fsync(file.fileno())
        self.rows[row["dataset"], row["_id"]] = row

    def drop(self, keys: Collection[Key]) -> None:
        """Leave out some records, in one step."""
        if self.rows.keys() & keys:
            self.rows = {key: row for key, row in self.rows.items() if key not in keys}
            replace(self.path, lines(self.rows.values()))


def with_compared(times: Sequence[str]) -> tuple[str, ...]:
    """The method's `times`, then those of the unmodified model, then those of its engine with nothing pruned."""
    return tuple(f"{whose}{time}" for whose in ("", "baseline_", "keep_1_") for time in times)


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as JSON Lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def journals(folder: Path, name: str) -> list[Path]:
    """The files of a folder that hold the rows of `name`: those of shards not yet merged, then the whole run's.

    Read them in this order, and expect any of them to be missing: while they are read, a merge may move rows from the
    first ones into the last.
    """
    stem, suffix = name.split(".")
    parts = [path for path in folder.glob(f"{stem}-*.{suffix}") if re.fullmatch(rf"{stem}-\d+of\d+", path.stem)]
    return [*sorted(parts), folder / name]


def read_rows(folder: Path, name: str) -> Rows:
    """The rows of `name` in all of a folder's files. The last row of a record wins, but an error replaces no answer.

    Raises:
        LazyBenchError: a line before the last one of a file is damaged.
    """
    found: Rows = {}
    for path in journals(folder, name):
        journal = Journal(path)
        journal.load(mend=False)
        for key, row in journal.rows.items():
            if key not in found or not row.get("error") or found[key].get("error"):
                found[key] = row
    return found


def journal_names(traced: bool) -> tuple[str, ...]:
    """The journals that a run needs to be finished: with its traces or without."""
    return (PREDICTIONS, TRACES) if traced else (PREDICTIONS,)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) and {"dataset", "_id"} <= row.keys() else None
