"""Find and read runs on disk: run folders, and the compact form that reports write.

The compact form is a CSV of the numbers and a JSON of everything else, small enough to commit.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pandas as pd
import yaml

from lazybench.analysis.grouping import conditions
from lazybench.analysis.labels import label
from lazybench.analysis.run_data import COUNTS, NUMBERS, TEXTS, TIMED, Run, records_table, rounded, row_of
from lazybench.analysis.trace_means import trace_means
from lazybench.errors import LazyBenchError, first_line, one_line
from lazybench.identity import method_identity
from lazybench.store.journal import PREDICTIONS, TRACES, journals, read_rows
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, SCORES
from lazybench.store.survey import run_folders

_MARK = "lazybench records"
_IN_JSON = ("finished", "settings", "environment", "traces")
_MACHINE = ("commit", "device", "threads", "versions")  # where times were taken
_PATH = re.compile(r"(?:file://|(?<![\w.:/]))/[^\s,\]}'\"]*/")


def find(roots: Sequence[str | Path], option: str = "runs") -> tuple[list[Run], list[str]]:
    """Read every run below some folders, each once.

    Args:
        roots: trees of run folders, or of the records that an earlier report wrote.
        option: the option that named them, for messages.

    Returns:
        The runs, and warnings, which name runs that cannot be read and why.

    Raises:
        LazyBenchError: a folder is missing or holds no runs, or none of its runs can be read.
    """
    runs: dict[str, Run] = {}
    warnings = []
    for root in map(Path, roots):
        if not root.is_dir():
            raise LazyBenchError(f"{option}={root}: no such folder")
        # A folder may hold settings alone.
        paths = [path for path in run_folders(root) if any(file.exists() for file in journals(path, PREDICTIONS))]
        paths += [path for path in sorted(root.rglob("*.json")) if _MARK.encode() in path.read_bytes()[:100]]
        if not paths:
            raise LazyBenchError(f"{option}={root}: no runs there; make one: lazybench run method=lazyllm task=code")
        bad = []
        for path in paths:
            try:
                run = read_folder(path) if path.is_dir() else read_compact(path)
                # Tables take these from settings and environment: an error in them is raised here.
                label(run)
                conditions(run)
                for name in run.datasets:
                    run.expected(name)
            except Exception as error:  # files can be broken in any way
                reason = one_line(str(error) if isinstance(error, LazyBenchError) else first_line(error))
                bad.append((reason if str(path) in reason else f"{path}: {reason}").replace(f"{root}/", ""))
                continue
            other = runs.setdefault(run.name, run)
            if not other.records.equals(run.records):
                warnings.append(f"two copies of {run.name} have different records: the one with more of them is used")
            runs[run.name] = max(other, run, key=lambda copy: len(copy.records))
        if len(bad) == len(paths):
            raise LazyBenchError(f"{option}={root}: no run there can be read: {bad[0]}")
        warnings += [f"a run is left out: {reason}" for reason in bad]
    return sorted(runs.values(), key=lambda run: run.name), warnings


def with_times(runs: Sequence[Run], timed: Sequence[Run]) -> list[Run]:
    """Replace the runs' times by those of `timed` runs of the same methods on the same records.

    Answers can then come from a GPU, or from many jobs at once, and times from one job at a time on some of the
    records. Other records have no times. `environment["times"]` describes the machine of the times.

    Raises:
        LazyBenchError: the timed runs timed a record twice.
    """
    machines = pd.DataFrame([run.environment.get("times", run.environment) for run in timed])
    machines = machines.reindex(columns=_MACHINE).astype(str)
    described = {key: "; ".join(machines[key].unique()) for key in machines}
    index = ["measured", "dataset", "_id"]
    times = pd.concat(run.records.dropna(subset="ttft_s").assign(measured=_measured(run)) for run in timed)
    times = times.set_index(index)
    if times.index.has_duplicates:
        raise LazyBenchError(f"times=: {' '.join(times.index[times.index.duplicated()][0][1:])} was timed twice")
    replaced = []
    for run in runs:
        records = run.records.assign(measured=_measured(run)).set_index(index)
        records[[*TIMED]] = times[[*TIMED]].reindex(records.index)
        settings = run.settings | {"timing": timed[0].settings["timing"]}
        environment, records = run.environment | {"times": described}, records.reset_index()[[*run.records]]
        replaced.append(replace(run, settings=settings, environment=environment, records=records))
    return replaced


def _measured(run: Run) -> str:
    """Return a key that is equal for runs of the same model, data and method on different machines."""
    prefixes = ("model.", "weights", "dtype", "code.")
    shared = {key: value for key, value in conditions(run).items() if key.startswith(prefixes)}
    return json.dumps([run.model, run.data, method_identity(run.settings["method"]), shared], sort_keys=True)


def read_folder(folder: Path) -> Run:
    """Read the run in `<model>/<data>/<method>/<hash>`; a damaged file raises any error of its reader."""
    settings = _settings(folder / CONFIG)
    environment = json.loads((folder / ENVIRONMENT).read_text("utf-8"))
    if "command" in environment:  # without this machine's folders
        environment["command"] = [_PATH.sub("FOLDER/", str(word)) for word in environment["command"]]
    lines, traced = read_rows(folder, PREDICTIONS), read_rows(folder, TRACES)
    divergences = {key: {name: row.get(name) for name in ("first_token_kl", "kl")} for key, row in traced.items()}
    expected = sum((settings.get("records_of") or {}).values())
    return Run(
        *(settings[section]["name"] for section in ("model", "data", "method")),
        digest=folder.name,
        settings=settings,
        environment=environment,
        finished=(folder / SCORES).is_file() and len(lines) >= expected,
        records=rounded(records_table(row_of(line) | divergences.get(key, {}) for key, line in lines.items())),
        traces=trace_means(traced.values()),
    )


def _settings(path: Path) -> dict[str, Any]:
    """Read a run's settings, without this machine's folders."""
    settings = yaml.safe_load(path.read_text("utf-8"))
    model = settings["model"]
    for section in (model, model.get("tokenizer") or {}, settings["data"], settings["method"]):
        for key, value in section.items():
            if isinstance(value, str) and key != "chat" and PurePath(value).is_absolute():
                section[key] = PurePath(value).name
    return settings


def write_compact(runs: Iterable[Run], folder: Path) -> None:
    """Write `<model>/<data>/<method>/<hash>.csv` and `.json` for each run."""
    for run in runs:
        path = folder / run.name
        path.parent.mkdir(parents=True, exist_ok=True)
        run.records.astype(dict.fromkeys(COUNTS, "Int64")).to_csv(f"{path}.csv", index=False, lineterminator="\n")
        names = {key: getattr(run, key) for key in ("model", "data", "method", "digest")}
        content = {"format": f"{_MARK} 2", "run": names} | {key: getattr(run, key) for key in _IN_JSON}
        Path(f"{path}.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def read_compact(path: Path) -> Run:
    """Read the run of a `.json` file that `write_compact` wrote; a damaged pair raises any error of its readers."""
    content = json.loads(path.read_text("utf-8"))
    types, blanks = dict.fromkeys(TEXTS, str) | dict.fromkeys(NUMBERS, float), {key: [""] for key in NUMBERS}
    records = pd.read_csv(path.with_suffix(".csv"), dtype=types, keep_default_na=False, na_values=blanks)
    records[["dataset", "_id", "score", "error"]]  # raises if one is missing; earlier versions lack other columns
    values = {key: content[key] for key in _IN_JSON}
    return Run(**content["run"], **values, records=rounded(records_table(records)))
