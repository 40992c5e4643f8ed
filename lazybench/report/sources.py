"""Finds the runs that a report is about."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lazybench.errors import LazyBenchError, first_line, one_line
from lazybench.report import folders, records
from lazybench.report.conditions import conditions
from lazybench.report.labels import label
from lazybench.report.run_data import Run
from lazybench.store.run_folder import CONFIG, PREDICTIONS, SCORES, journals, run_folders


def find(places: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Every run in some places, each once, and warnings, which name runs that cannot be read and why.

    Args:
        places: trees of run folders, or of the records that an earlier report wrote.

    Raises:
        LazyBenchError: a place is missing or holds no runs, or none of its runs can be read.
    """
    found: dict[str, Run] = {}
    warnings = []
    for place in places:
        runs, bad = _in(Path(place))
        if not runs and bad:
            others = f" (and {len(bad) - 1} more runs cannot be read)" if len(bad) > 1 else ""
            raise LazyBenchError(f"runs={place}: no run there can be read: {bad[0]}{others}")
        if not runs:
            raise LazyBenchError(
                f"runs={place}: no runs there; make one first: python -m lazybench run method=lazyllm task=multidoc_qa"
            )
        warnings += [f"a run is left out: {reason}" for reason in bad]
        for run in runs:
            other = found.get(run.name)
            if other is not None and not other.records.equals(run.records):
                warnings.append(
                    f"{run.name} is there twice with different records ({len(other.records)} and {len(run.records)}): "
                    "the copy with more of them is used, the first where they are as many"
                )
            if other is None or len(run.records) > len(other.records):
                found[run.name] = run
            if not run.finished and run.folder is not None and (run.folder / SCORES).is_file():
                warnings.append(f"{run.name}: some of the records that its scores are about are gone: it is unfinished")
    return sorted(found.values(), key=lambda run: run.name), warnings


def _in(place: Path) -> tuple[list[Run], list[str]]:
    """The runs of a place, and why others cannot be read."""
    if not place.is_dir():
        raise LazyBenchError(f"runs={place}: no such folder")
    runs, bad = [], []
    for path, read in _readers(place):
        try:
            runs.append(_checked(read(path)))
        except LazyBenchError as error:
            bad.append(str(error))
        except Exception as error:  # files can be broken in any way
            bad.append(f"{path}: {first_line(error)}")
    return runs, [one_line(reason.replace(f"{place}/", "")) for reason in bad]


def _readers(place: Path) -> Iterator[tuple[Path, Callable[[Path], Run]]]:
    """Everything in a place that holds a run, and what reads it."""
    for folder in run_folders(place):
        if not _is_calibration(folder):
            yield folder, folders.read
    for path in sorted(place.rglob("*.json")):
        hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        if not hidden and _is_compact(path):
            yield path, records.read


def _is_calibration(folder: Path) -> bool:
    """Whether a folder was written by `lazybench calibrate`, whose settings lie in files of the same names."""
    if any(path.exists() for path in journals(folder, PREDICTIONS)):
        return False
    try:
        return "\nbudget:" in (folder / CONFIG).read_text("utf-8")
    except (OSError, ValueError):
        return False


def _is_compact(path: Path) -> bool:
    """Whether a `.json` file is one of a run's two in the records of a report, or was one."""
    try:
        if records.is_record_file(path):
            return True
        if path.with_suffix(".csv").is_file():
            json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return True
    return False


def _checked(run: Run) -> Run:
    """The run, if all is there that tables need of its settings and environment.

    Raises:
        LazyBenchError: its task, a dataset or a metric is not known.
    """
    where = run.folder / CONFIG if run.folder else run.name
    try:
        known = {*run.datasets, *run.facts}
    except LazyBenchError as error:
        raise LazyBenchError(f"{where}: {error}") from error
    label(run)
    conditions(run)
    for name in run.datasets:
        run.expected(name)
    if unknown := sorted(set(run.records["dataset"]) - known):
        raise LazyBenchError(f"{where}: its records are of {unknown[0]!r}, which is no dataset")
    return run
