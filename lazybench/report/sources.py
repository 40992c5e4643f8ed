"""Finds the runs that a report is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lazybench.errors import LazyBenchError
from lazybench.report import folders, records
from lazybench.report.run_data import Run
from lazybench.store import CONFIG, ENVIRONMENT


def find(places: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Every run in some places, each once, and warnings.

    Args:
        places: trees of run folders, or of the records that an earlier report wrote.

    Raises:
        LazyBenchError: a place is missing or holds no runs, or a run cannot be read.
    """
    found: dict[str, Run] = {}
    warnings = []
    for place in places:
        runs = _in(Path(place))
        if not runs:
            raise LazyBenchError(
                f"runs={place}: no runs there; make one first: python -m lazybench run method=lazyllm task=multidoc_qa"
            )
        for run in runs:
            other = found.get(run.name)
            if other is not None and not other.records.equals(run.records):
                warnings.append(
                    f"{run.name} is there twice with different records ({len(other.records)} and {len(run.records)}): "
                    "the copy with more of them is used, the first where they are as many"
                )
            if other is None or len(run.records) > len(other.records):
                found[run.name] = run
    return sorted(found.values(), key=lambda run: run.name), warnings


def _in(place: Path) -> list[Run]:
    if not place.is_dir():
        raise LazyBenchError(f"runs={place}: no such folder")
    visible = [
        path
        for path in sorted(place.rglob("*"))
        if not any(part.startswith(".") for part in path.relative_to(place).parts)
    ]
    runs = [folders.read(path.parent) for path in visible if path.name == CONFIG and _is_run(path.parent)]
    compact = [path for path in visible if path.suffix == ".json" and path.with_suffix(".csv").is_file()]
    return runs + [records.read(path) for path in compact if records.is_record_file(path)]


def _is_run(folder: Path) -> bool:
    return (folder / ENVIRONMENT).is_file()
