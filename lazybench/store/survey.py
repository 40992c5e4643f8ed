"""What can be told of runs on disk without taking part in them: for `status`, plans and reports."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.store.journal import PREDICTIONS, Journal, journals, read_rows, settled
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, RERUN, SCORES, shard_of


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


def survey(folder: Path, shard: Shard | None = None, records: int | None = None) -> tuple[int, str | None]:
    """How many records of a run, or of a shard, are done, and what is wrong with the files they are in.

    Args:
        folder: the run's folder.
        shard: the shard; None for the whole run.
        records: how many there are to do; None where that is not known.
    """
    rows, damage = [], None
    for path in journals(folder, PREDICTIONS):
        other = shard_of(path)
        if other is not None and shard not in (None, other) and other.count == shard.count:
            continue  # other records than these
        journal = Journal(path)
        try:
            journal.read()
        except FileNotFoundError:
            continue
        except (OSError, LazyBenchError) as error:
            damage = str(error)
        rows += journal.rows.values()
    done, scored = len(settled(rows)), scored_records(folder)
    lost = max(0, (scored or 0) - done)
    if shard is not None and records is not None:
        done = max(0, min(done, records - lost))  # the others are of other shards
    if lost and damage is None:
        damage = f"{lost} of the {scored} records that its scores are about are gone"
    return done, damage


def rerun_records(folder: Path) -> int | None:
    """How many records a rerun that has not come to its end has run again; None where there is none."""
    with suppress(LazyBenchError):
        if any(path.exists() for path in journals(folder, RERUN + PREDICTIONS)):
            return len(read_rows(folder, RERUN + PREDICTIONS))
    return None


def scored_records(folder: Path) -> int | None:
    """How many records the scores of a run are about, failed ones included; None where there are no such scores."""
    try:
        datasets = json.loads((folder / SCORES).read_text("utf-8"))["datasets"].values()
        return sum(of["records"] + of["failed"] for of in datasets)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
