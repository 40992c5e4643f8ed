"""Finds the runs that a report is about, and reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import yaml

from lazybench.analysis import traces
from lazybench.analysis.blocks import conditions
from lazybench.analysis.labels import label
from lazybench.analysis.run_data import Run, is_compact, number, read_compact, records_table, rounded, row_of
from lazybench.config import check_name
from lazybench.errors import LazyBenchError, first_line, one_line
from lazybench.store.journal import PREDICTIONS, TRACES, journals, read_rows
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, SCORES
from lazybench.store.survey import run_folders, scored_records


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
        if not runs:
            others = f" (and {len(bad) - 1} more runs cannot be read)" if len(bad) > 1 else ""
            none = "no runs there; make one first: python -m lazybench run method=lazyllm task=multidoc_qa"
            raise LazyBenchError(f"runs={place}: " + (f"no run there can be read: {bad[0]}{others}" if bad else none))
        warnings += [f"a run is left out: {reason}" for reason in bad]
        for run in runs:
            other = found.get(run.name)
            if other is not None and not other.records.equals(run.records):
                warnings.append(
                    f"two copies of {run.name} have different records ({len(other.records)} and {len(run.records)}): "
                    "the copy with more records is used, or the first one"
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
            yield folder, read_folder
    for path in sorted(place.rglob("*.json")):
        hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        if not hidden and is_compact(path):
            yield path, read_compact


def _is_calibration(folder: Path) -> bool:
    """Whether a folder was written by `lazybench calibrate`, whose settings lie in files of the same names."""
    if any(path.exists() for path in journals(folder, PREDICTIONS)):
        return False
    try:
        return "\nbudget:" in (folder / CONFIG).read_text("utf-8")
    except (OSError, ValueError):
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


def read_folder(folder: Path) -> Run:
    """The run in `<model>/<data>/<method>/<hash>`.

    Raises:
        LazyBenchError: a file of it cannot be read; the message names the file, and the record where there is one.
    """
    settings = _settings(folder / CONFIG)
    lines, traced = read_rows(folder, PREDICTIONS), read_rows(folder, TRACES)
    rows = {key: row_of(line, f"{folder / PREDICTIONS}: {'/'.join(key)}") for key, line in lines.items()}
    for key, row in rows.items():
        for name in ("first_token_kl", "kl"):
            row[name] = number(traced.get(key, {}).get(name), name, str(folder / TRACES))
    scored = scored_records(folder)
    return Run(
        *(settings[section]["name"] for section in ("model", "data", "method")),
        digest=folder.name,
        settings=settings,
        environment=_mapping(folder / ENVIRONMENT, json.loads),
        finished=(folder / SCORES).is_file() and (scored is None or len(rows) >= scored),
        records=rounded(records_table(rows.values())),
        traces=traces.summarise(list(traced.values()), str(folder / TRACES)),
        folder=folder,
    )


def _settings(path: Path) -> dict[str, Any]:
    """The settings of a run, without the folders of the machine they come from."""
    settings = _mapping(path, yaml.safe_load)
    for section in ("model", "data", "method"):
        if not isinstance(settings.get(section), dict) or "name" not in settings[section]:
            raise LazyBenchError(f"{path}: {section!r} is missing: not the settings of a run")
    if "task" not in settings:
        raise LazyBenchError(f"{path}: 'task' is missing: not the settings of a run")
    data, model, method = (settings[section] for section in ("data", "model", "method"))
    try:
        check_name("model.name", model["name"])  # figures' files are named after them
        check_name("data.name", data["name"])
    except LazyBenchError as error:
        raise LazyBenchError(f"{path}: {error}") from None
    tokenizer = model.get("tokenizer") or {}
    for section, keys in ((data, ["root"]), (model, ["path"]), (tokenizer, [*tokenizer]), (method, [*method])):
        section |= {key: PurePath(section[key]).name for key in keys if _is_absolute(section.get(key))}
    if "command" in settings:
        settings["command"] = _portable(settings["command"])
    return settings


def _portable(value: Any) -> Any:
    """The parts of a command with `FOLDER` for the places of the machine it was given on."""
    if isinstance(value, dict):
        return {key: _portable(of) for key, of in value.items()}
    if isinstance(value, list):
        return [_portable(of) for of in value]
    return f"FOLDER/{PurePath(value).name}" if _is_absolute(value) else value


def _is_absolute(value: Any) -> bool:
    return isinstance(value, str) and PurePath(value).is_absolute()


def _mapping(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        values = parse(path.read_text("utf-8"))
    except OSError as error:
        raise LazyBenchError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError):
        values = None
    if not isinstance(values, dict):
        raise LazyBenchError(f"{path} is damaged: keys and values were expected; move the run's folder away")
    return values
