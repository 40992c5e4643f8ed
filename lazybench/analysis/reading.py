"""Finds the runs that a report is about, and reads them, their traces as what figures need of these."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pandas as pd
import yaml

from lazybench.analysis.blocks import conditions
from lazybench.analysis.labels import label
from lazybench.analysis.run_data import TIMED, Run, is_compact, read_compact, records_table, rounded, row_of
from lazybench.config import check_name
from lazybench.errors import LazyBenchError, first_line, one_line
from lazybench.store.journal import PREDICTIONS, TRACES, journals, read_rows
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, SCORES
from lazybench.store.survey import run_folders, scored_records

BINS = 100  # that a prompt's attention is kept in
_SPREAD = (0.1, 0.9)
_MACHINE = ("device", "threads", "versions")  # what times must share


def find(places: Sequence[str | Path], option: str = "runs") -> tuple[list[Run], list[str]]:
    """Every run in some places, each once, and warnings, which name runs that cannot be read and why.

    Args:
        places: trees of run folders, or of the records that an earlier report wrote.
        option: what gave them, for messages.

    Raises:
        LazyBenchError: a place is missing or holds no runs, or none of its runs can be read.
    """
    found: dict[str, Run] = {}
    warnings = []
    for place in places:
        if not Path(place).is_dir():
            raise LazyBenchError(f"{option}={place}: no such folder")
        runs, bad = _in(Path(place))
        if not runs:
            others = f" (and {len(bad) - 1} more runs cannot be read)" if len(bad) > 1 else ""
            none = "no runs there; make one first: python -m lazybench run method=lazyllm task=multidoc_qa"
            said = f"no run there can be read: {bad[0]}{others}" if bad else none
            raise LazyBenchError(f"{option}={place}: {said}")
        warnings += [f"a run is left out: {reason}" for reason in bad]
        for run in runs:
            other = found.setdefault(run.name, run)
            if not other.records.equals(run.records):
                warnings.append(
                    f"two copies of {run.name} have different records ({len(other.records)} and {len(run.records)}): "
                    "the copy with more records is used, or the first one"
                )
            found[run.name] = max(other, run, key=lambda copy: len(copy.records))
    return sorted(found.values(), key=lambda run: run.name), warnings


def with_times(runs: Sequence[Run], timed: Sequence[Run]) -> list[Run]:
    """The runs with the times that others took of the same methods, in place of their own.

    So answers can be given on a GPU or many at once, and times be taken alone, of a part of the records; what was not
    timed there has no times. `environment["times"]` says where they were taken.

    Raises:
        LazyBenchError: the others ran on unlike machines, timed a record twice, or are of none of these methods.
    """
    places = [run.environment.get("times", run.environment) for run in timed]
    where = {key: dict.fromkeys(str(place.get(key)) for place in places) for key in ("commit", *_MACHINE)}
    said = {key: "; ".join(values) for key, values in where.items()}
    for key in _MACHINE:
        if len(where[key]) > 1:
            raise LazyBenchError(f"times=: its runs differ in {key} ({said[key]}): give those that agree")
    times = pd.concat(run.records.dropna(subset="ttft_s").assign(of=_measured(run)) for run in timed)
    times = times.set_index(["of", "dataset", "_id"])
    if times.index.has_duplicates:
        raise LazyBenchError(f"times=: {' '.join(times.index[times.index.duplicated()][0][1:])} was timed twice")
    timing = {key: value for key, value in timed[0].settings["timing"].items() if key != "every"}
    found = []
    for run in runs:
        records = run.records.assign(of=_measured(run)).set_index(["of", "dataset", "_id"])
        records[[*TIMED]] = times[[*TIMED]].reindex(records.index)
        about = {"settings": run.settings | {"timing": timing}, "environment": run.environment | {"times": said}}
        found.append(replace(run, **about, records=records.reset_index()[[*run.records]]))
    if all(run.records["ttft_s"].isna().all() for run in found):
        raise LazyBenchError("times=: no run there is of a method, model and prompt length of those in runs=")
    return found


def _measured(run: Run) -> str:
    """What was measured, wherever: model, data and method."""
    at = {key: of for key, of in conditions(run).items() if key.startswith(("model.", "weights", "dtype", "code."))}
    return json.dumps([run.model, run.data, run.settings["method"], at], sort_keys=True)


def _in(place: Path) -> tuple[list[Run], list[str]]:
    """The runs of a place, and why others cannot be read."""
    runs, bad = [], []
    for path, read in _readers(place):
        try:
            run = read(path)
            _check(run)
            runs.append(run)
        except Exception as error:  # files can be broken in any way
            reason = str(error) if isinstance(error, LazyBenchError) else first_line(error)
            bad.append(one_line((reason if str(path) in reason else f"{path}: {reason}").replace(f"{place}/", "")))
    return runs, bad


def _readers(place: Path) -> Iterator[tuple[Path, Callable[[Path], Run]]]:
    """Everything in a place that holds a run, and what reads it."""
    for folder in run_folders(place):
        # `lazybench calibrate` writes its settings into files of the same names.
        if any(path.exists() for path in journals(folder, PREDICTIONS)):
            yield folder, read_folder
    for path in sorted(place.rglob("*.json")):
        hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        if not hidden and is_compact(path):
            yield path, read_compact


def _check(run: Run) -> None:
    """Try what tables need of a run's settings and environment, and raise what comes of it."""
    label(run)
    conditions(run)
    for name in run.datasets:
        run.expected(name)
    if unknown := sorted(set(run.records["dataset"]) - {*run.datasets, *run.facts}):
        raise LazyBenchError(f"its records are of {unknown[0]!r}, which is no dataset")


def read_folder(folder: Path) -> Run:
    """The run in `<model>/<data>/<method>/<hash>`; files that are damaged raise what their readers do."""
    settings = _settings(folder / CONFIG)
    environment = json.loads((folder / ENVIRONMENT).read_text("utf-8"))
    if "command" in environment:  # `FOLDER` stands for the places of the machine that it was given on
        place = re.compile(r"(?:file://|(?<![\w.:/]))/[^\s,\]}'\"]*/")
        environment["command"] = [place.sub("FOLDER/", str(word)) for word in environment["command"]]
    lines, traced = read_rows(folder, PREDICTIONS), read_rows(folder, TRACES)
    rows = {key: row_of(line) for key, line in lines.items()}
    for key, row in rows.items():
        row |= {name: traced.get(key, {}).get(name) for name in ("first_token_kl", "kl")}
    scored = scored_records(folder)
    return Run(
        *(settings[section]["name"] for section in ("model", "data", "method")),
        digest=folder.name,
        settings=settings,
        environment=environment,
        finished=(folder / SCORES).is_file() and (scored is None or len(rows) >= scored),
        records=rounded(records_table(rows.values())),
        traces=_computed(traced.values()) | _attention(traced.values()),
    )


def _settings(path: Path) -> dict[str, Any]:
    """The settings of a run, without the folders of the machine they come from."""
    settings = yaml.safe_load(path.read_text("utf-8"))
    settings.pop("command", None)  # run folders of earlier versions have it here
    sections = [settings.get(section) for section in ("model", "data", "method")]
    if "task" not in settings or not all(isinstance(of, dict) and "name" in of for of in sections):
        raise LazyBenchError(f"{path}: 'task', or the name of model, data or method, is missing: not a run's settings")
    for section, name in zip(("model", "data"), sections, strict=False):
        check_name(f"{path}: {section}.name", name["name"])  # figures' files are named after them
    for of in (*sections, sections[0].get("tokenizer") or {}):
        for key, value in of.items():
            if isinstance(value, str) and key != "chat" and PurePath(value).is_absolute():
                of[key] = PurePath(value).name
    return settings


def _computed(rows: Collection[dict[str, Any]]) -> dict[str, Any]:
    """Of a run's lines of `traces.jsonl` what Figure 7 shows, `layers` and `computed`; empty without.

    These are the layers that prune, and `mean`, `low` and `high` (10th and 90th percentile), each `(stages, steps)`, of
    the fraction of prompt tokens computed behind them, over so many `records`. A record whose generation has ended
    keeps its last value, so that every step is about the same records; `living` counts by step those that have not.
    """
    traced = [row for row in rows if row.get("computed")]
    stages = {tuple(row["stages"]) for row in traced}
    if len(stages) != 1:  # none, or a calibrated method's, whose folds prune behind different layers
        return {}
    layers = list(stages.pop())
    steps = max(len(row["computed"]) for row in traced)
    held = np.empty((len(traced), len(layers), steps))
    for record, row in zip(held, traced, strict=True):
        values = np.asarray(row["computed"], dtype=float).T
        record[:, : values.shape[1]] = values
        record[:, values.shape[1] :] = values[:, -1:]
    living = [sum(len(row["computed"]) > step for row in traced) for step in range(steps)]
    return {"layers": layers, "computed": {"records": len(traced), "living": living, **_spread(held)}}


def _attention(rows: Collection[dict[str, Any]]) -> dict[str, Any]:
    """What Figure 2 shows, `attention`: `map`, the mean of `(layers, BINS)` over so many `records`, and `mean`, `low`
    and `high` of the cumulative share of attention mass held by the top x % of tokens, x = 0..100; empty without.
    """
    traced = [row["attention"] for row in rows if row.get("attention")]
    if not traced:
        return {}
    maps = np.mean([_rebin(np.asarray(of["map"], dtype=float)) for of in traced], axis=0)
    mass = np.asarray([of["sorted_mass"] for of in traced], dtype=float)
    return {"attention": {"records": len(traced), "map": _short(maps, digits=3), **_spread(mass)}}


def _rebin(attention: np.ndarray) -> np.ndarray:
    """The same attention `(layers, bins)` in as many bins for every record; short prompts come with fewer."""
    given = np.linspace(0, 1, attention.shape[1] + 1)
    wanted = np.linspace(0, 1, BINS + 1)
    so_far = np.pad(attention, ((0, 0), (1, 0))).cumsum(axis=1)
    return np.diff([np.interp(wanted, given, layer) for layer in so_far], axis=1)


def _spread(values: np.ndarray) -> dict[str, Any]:
    low, high = np.quantile(values, _SPREAD, axis=0)
    return {"mean": _short(values.mean(axis=0)), "low": _short(low), "high": _short(high)}


def _short(values: np.ndarray, digits: int = 5) -> list[Any]:
    return np.vectorize(lambda value: float(f"{value:.{digits}g}"), [float])(values).tolist()
