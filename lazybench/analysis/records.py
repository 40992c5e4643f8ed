"""Runs as reports read them, from run folders or from the compact form that reports write.

The compact form is `records.csv`, one line per row of a table and record, and `runs.json`, everything else about the
runs. It is small enough to commit.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import yaml

from lazybench.analysis.trace_means import trace_means
from lazybench.data.dataset_configs import DatasetConfig, datasets_of, english, load_dataset_configs
from lazybench.errors import LazyBenchError, first_line, one_line
from lazybench.store.journal import PREDICTIONS, TIMES, TRACES, journals, read_rows
from lazybench.store.run_folder import CONFIG, ENVIRONMENT
from lazybench.store.survey import run_folders

RECORDS, RUNS = "records.csv", "runs.json"
KEY = ["dataset", "_id"]
_RECORD = ["model", "data", *KEY]
# Subjects of times besides the timed runs, which are named `<method>/<hash>`.
UNMODIFIED, NOTHING_PRUNED = "unmodified", "nothing_pruned"
OWN = "run"  # the `timing` of times from the run itself; those of a timing run have its hash
# Keys of a trial, in seconds and tokens, by the column of tables, to which a subject's prefix is added.
TRIAL = {"ttft_s": "ttft_s", "generation_s": "generation_s", "decode_step_s": "decode_step_s"}
TRIAL |= {"timed_tokens": "new_tokens"}
_PREFIXES = ("", "unmodified_", "nothing_pruned_")
# Shares from 0 to 1, nats, tokens, and words in `length`; blank if not measured.
_COUNTS = ("length", "prompt_tokens", "new_tokens", "unmodified_new_tokens")
_SHARES = ("score", "unmodified_score", "reached_limit", "prompt_computed", "identical_tokens", "identical_answer")
_NUMBERS = (*_COUNTS, *_SHARES, "first_token_kl", "kl")
# In JSON; a file leaves out those that are the same in the line before of the same record.
_REFERENCES = ["answers", "all_classes"]
# The scores of several seeds are separated by blanks.
_TEXTS = ("groups", "prediction", "score_by_seed", "error", "device", "commit", "date", *_REFERENCES)
_TIME_NUMBERS = (*(prefix + key for prefix in _PREFIXES for key in TRIAL), "retries", "noisy", "threads")
TIME_TEXTS = ("timing", "timed_on", "timed_commit", "timed_date")
COLUMNS = (*KEY, *_NUMBERS, *_TEXTS)
TIME_COLUMNS = (*TIME_TEXTS, *_TIME_NUMBERS)
_INTEGERS = (*_COUNTS, "retries", "noisy", "threads")
_OWNER = ["model", "data", "subject"]  # identify the run that was timed
_FORMAT = "lazybench records 5"
_PATH = re.compile(r"(?:file://|(?<![\w.:/]))/[^\s,\]}'\"]*/")


@dataclass(frozen=True)
class Run:
    """One run."""

    model: str  # the names of model, data and method: the levels of the run's folder
    data: str
    method: str
    digest: str  # the run's hash, the fourth level
    settings: dict[str, Any]  # its `config.yaml`, without this machine's folders
    environment: dict[str, Any]  # its `environment.json`; `command` has the arguments of the command line
    traces: dict[str, Any]  # of `trace_means`, empty without any
    folder: str  # where it was read
    records: pd.DataFrame  # one row per record, with `COLUMNS`; `error` is empty if the method ran

    @property
    def name(self) -> str:
        """The run's path below the folder of all runs."""
        return f"{self.model}/{self.data}/{self.method}/{self.digest}"

    @cached_property
    def configs(self) -> dict[str, DatasetConfig]:
        """Configs by dataset, those of the user's datasets included."""
        return load_dataset_configs(self.settings["data"].get("datasets"))

    @cached_property
    def datasets(self) -> list[str]:
        """The datasets that it covers once it is finished."""
        available = self.settings["data"].get("available")
        return datasets_of(self.settings["task"], self.configs, english() if available is None else list(available))


def answers_table(lines: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a table with `COLUMNS` of lines of predictions, which can have traced columns, too."""
    rows = []
    for line in lines:
        seeds = [repeat.get("score") for repeat in line.get("repeats") or []]
        shares = [repeat.get("identical_tokens") for repeat in line.get("repeats") or [line]]
        # Half a surrogate pair cannot be written.
        line = {**line, **{key: json.dumps(line[key]) if line.get(key) else "" for key in _REFERENCES}}
        texts = {key: line[key].encode("utf-8", "replace").decode() for key in _TEXTS if line.get(key)}
        same = {} if None in shares else {"identical_answer": fmean(share == 1 for share in shares)}
        scores = {} if None in seeds else {"score_by_seed": " ".join(f"{score:.6g}" for score in seeds)}
        rows.append({**line, **texts, **same, **scores})
    return _typed(pd.DataFrame(rows, columns=list(COLUMNS)))


def times_table(lines: Iterable[Mapping[str, Any]], timing: str = OWN) -> pd.DataFrame:
    """Make a table of lines of times: `subject`, `KEY` and `TIME_COLUMNS`, a row per record and timed run.

    The unmodified model is the subject of its own runs. `timing` is the hash of the timing run. Trials are averaged.
    """
    rows = []
    for line in lines:
        if not (trials := line.get("trials")):
            continue
        shared = {key: line[key] for key in (*KEY, "threads", "retries", "noisy")} | {"timing": timing}
        shared |= {"timed_on": line["device"], "timed_commit": line.get("commit"), "timed_date": line["date"]}
        own = [name for name in trials if name not in (UNMODIFIED, NOTHING_PRUNED)]
        for subject in own or [*trials][:1]:
            row = shared | {"subject": subject}
            for prefix, name in zip(_PREFIXES, (subject, UNMODIFIED, NOTHING_PRUNED), strict=True):
                for column, key in TRIAL.items():
                    values = [trial[key] for trial in trials.get(name, ()) if trial[key] is not None]
                    row[prefix + column] = fmean(values) if values else None
            rows.append(row)
    return _typed(pd.DataFrame(rows, columns=["subject", *KEY, *TIME_COLUMNS]))


def find(roots: Sequence[str | Path]) -> tuple[list[Run], pd.DataFrame]:
    """Read every run and timing run below some folders.

    Args:
        roots: trees of run folders, or reports with `RECORDS` and `RUNS`.

    Returns:
        The runs, and all times, with `model` and `data` beside the columns of `times_table`.

    Raises:
        LazyBenchError: there are no runs in a folder, or a run cannot be read.
    """
    runs, times = [], []
    for root in map(Path, roots):
        # A folder may have only settings.
        paths = [path for path in run_folders(root) if any(file.exists() for file in journals(path, PREDICTIONS))]
        reports = [path.parent for path in root.rglob(RUNS) if path.with_name(RECORDS).exists()]
        if not paths and not reports:
            raise LazyBenchError(f"runs={root}: no runs there; make one: lazybench run method=lazyllm task=code")
        paths += [path for path in root.rglob("times/*") if any(file.exists() for file in journals(path, TIMES))]
        for read, folders in ((_read_run, paths), (_read_compact, reports)):
            for folder in folders:
                try:
                    found, own = read(folder)
                    for run in found:  # raise errors in settings that tables need
                        _ = run.datasets, run.settings["records_of"]
                except Exception as error:  # files can be broken in any way
                    reason = one_line(str(error) if isinstance(error, LazyBenchError) else first_line(error))
                    raise LazyBenchError(f"{folder} cannot be read, move it away: {reason}") from error
                runs += found
                times.append(own)
    # The same runs, read from anywhere and in any order, give the same report.
    order = [*_OWNER, *KEY, *TIME_TEXTS]
    return sorted(runs, key=lambda run: run.name), pd.concat(times).sort_values(order, kind="stable")


def write_compact(runs: Iterable[Run], records: pd.DataFrame, folder: Path) -> None:
    """Write the runs as `RUNS`, and as `RECORDS` their records, which have the `digest` of their run."""
    keys = ("model", "data", "method", "digest", "settings", "environment", "traces")
    entries = [json.dumps({key: getattr(run, key) for key in keys}) for run in runs]
    text = f'{{"format": "{_FORMAT}", "runs": [\n' + ",\n".join(entries) + "\n]}\n"
    (folder / RUNS).write_text(text, "utf-8")
    whole = records.astype(dict.fromkeys(_INTEGERS, "Int64"))
    before = whole.groupby(_RECORD)[_REFERENCES].shift()
    whole[_REFERENCES] = whole[_REFERENCES].mask(whole[_REFERENCES] == before, "")
    whole.to_csv(folder / RECORDS, index=False, lineterminator="\n")


def read_records(file: Path) -> pd.DataFrame:
    """Read a file of records that `write_compact` wrote; a damaged one raises any error of its reader."""
    numbers = (*_NUMBERS, *_TIME_NUMBERS)
    # A text may be empty, or "NA".
    table = pd.read_csv(
        file,
        dtype=dict.fromkeys(numbers, float),
        converters=dict.fromkeys(("digest", "label", *KEY, *_TEXTS, *TIME_TEXTS), str),
        keep_default_na=False,
        na_values={key: [""] for key in numbers},
        lineterminator="\n",
    )
    table[_REFERENCES] = table[_REFERENCES].where(table[_REFERENCES] != "")
    return table.assign(**table.groupby(_RECORD)[_REFERENCES].ffill().fillna(""))


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Round numbers, so that their sums are the same wherever they are read; missing texts are empty."""
    numbers = [key for key in (*_NUMBERS, *_TIME_NUMBERS) if key in frame]
    texts = frame.columns.difference(numbers)
    frame[numbers] = frame[numbers].astype(float).round(9)
    frame[texts] = frame[texts].astype(object).fillna("")
    return frame


def _read_run(folder: Path) -> tuple[list[Run], pd.DataFrame]:
    """Read the run in `<model>/<data>/<method>/<hash>`, or the timing run in `<model>/<data>/times/<hash>`.

    A damaged file raises any error of its reader.
    """
    if folder.parent.name == "times":
        timed = times_table(read_rows(folder, TIMES).values(), timing=folder.name)
        model, data = folder.resolve().parts[-4:-2]
        return [], timed.assign(model=model, data=data)
    # Without this machine's folders.
    config, described = (_PATH.sub("FOLDER/", (folder / name).read_text("utf-8")) for name in (CONFIG, ENVIRONMENT))
    settings, environment = yaml.safe_load(config), json.loads(described)
    lines, traced = read_rows(folder, PREDICTIONS), read_rows(folder, TRACES)
    kls = {key: {name: row.get(name) for name in ("first_token_kl", "kl")} for key, row in traced.items()}
    model, data, method = (settings[section]["name"] for section in ("model", "data", "method"))
    records = answers_table({**line, **kls.get(key, {})} for key, line in lines.items())
    means = trace_means(traced.values())
    run = Run(model, data, method, folder.name, settings, environment, means, str(folder), records)
    timed = times_table(read_rows(folder, TIMES).values())
    return [run], timed.assign(model=model, data=data, subject=f"{method}/{folder.name}")


def _read_compact(folder: Path) -> tuple[list[Run], pd.DataFrame]:
    """Read the files of `write_compact`; a damaged file raises any error of its reader."""
    content = json.loads((folder / RUNS).read_text("utf-8"))
    if content["format"] != _FORMAT:
        raise LazyBenchError(f"{folder / RUNS} is of another version ({content['format']}): make it again")
    table = read_records(folder / RECORDS)
    names = ["model", "data", "method", "digest"]
    by_run = dict(iter(table.groupby(names)))
    runs = []
    for entry in content["runs"]:
        name = tuple(entry[key] for key in names)
        records = by_run.get(name, table.head(0))
        runs.append(Run(**entry, folder=str(folder / "/".join(name)), records=records[[*COLUMNS]]))
    timed = table[table["timing"] != ""]
    timed = timed.assign(subject=timed["method"] + "/" + timed["digest"])
    return runs, timed[[*_OWNER, *KEY, *TIME_COLUMNS]]
