"""Time finished runs of a model side by side: one process, one device, one answer at a time."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from lazybench.config import DataConfig, ModelConfig, RunConfig, TimingConfig
from lazybench.data import Record
from lazybench.errors import LazyBenchError
from lazybench.identity import digest
from lazybench.model import environment
from lazybench.model.decoding import question_of
from lazybench.model.loading import load_model
from lazybench.run.prepare import Job, prepare
from lazybench.run.resources import Resources
from lazybench.run.timing import Timing
from lazybench.store.journal import PREDICTIONS, TIMES, Journal, Key
from lazybench.store.locks import Busy, Lock
from lazybench.store.run_folder import RunFolder, read_settings
from lazybench.store.survey import run_folders
from lazybench.store.writing import replace as write
from lazybench.store.writing import writing

FOLDER = "times"  # beside the folders of methods
TIMING = "timing.json"


def finished_runs(root: Path, resources: Resources) -> tuple[dict[str, dict[Path, Job]], list[Path]]:
    """Read the runs below `root`, and check that they would give the same answers today.

    Returns:
        the jobs of finished runs by folder, one group per unmodified model and set of prompts; and the folders of
        unfinished runs.

    Raises:
        LazyBenchError: there is no finished run, or the code, weights or records of one have changed.
    """
    groups: dict[str, dict[Path, Job]] = {}
    unfinished = []
    for path in run_folders(root):
        settings, _ = read_settings(path)
        rows, expected = RunFolder(path).rows(PREDICTIONS), sum((settings.get("records_of") or {}).values())
        if not expected or len(rows) < expected:
            unfinished.append(path)
            continue
        job = prepare(_config(settings, path.parents[3]), resources)
        if job.folder(environment.describe(job.config.model)) != path:
            raise LazyBenchError(f"{path}: its code, weights, records or dtype have changed since: run it again")
        shared = {"parent": path.parent.parent, "model": settings["model"], "weights": settings["weights"]}
        shared["data"] = {key: settings["data"][key] for key in ("seed", "tokens", "half")}
        groups.setdefault(digest(shared), {})[path] = job
    if not groups:
        raise LazyBenchError(f"runs={root}: no finished run there; make one: lazybench run method=lazyllm task=code")
    return groups, unfinished


def _config(settings: Mapping[str, Any], root: Path) -> RunConfig:
    values = {field.name: settings[field.name] for field in fields(RunConfig) if field.name in settings}
    values["model"] = ModelConfig(**values["model"])
    data = values["data"]
    values["data"] = DataConfig(**{field.name: data[field.name] for field in fields(DataConfig) if field.name in data})
    values["timing"] = TimingConfig(**values["timing"])
    return RunConfig(**values, matched="mark", output=str(root))


def time_together(jobs: Mapping[Path, Job], resources: Resources, records: int, warmup: int) -> Path:
    """Time runs of one model on some of the records that all of them have answered; return the timing run's folder.

    Args:
        jobs: the runs by folder.
        resources: loads the model.
        records: number of records to time, one of each dataset in turn.
        warmup: untimed rounds before the first one.

    Raises:
        LazyBenchError: no record was answered by all, or the folder cannot be written.
    """
    first = next(iter(jobs.values()))
    chosen = _in_turn(first, [_answered(path) for path in jobs])[:records]
    if not chosen:
        raise LazyBenchError(f"the runs of {first.config.model.name} share no answered record: none can be timed")
    described, source = environment.describe(first.config.model), environment.source(first.config.model)
    source["threads"] = torch.get_num_threads()
    names = [f"{path.parent.name}/{path.name}" for path in jobs]
    where = {key: (source | described)[key] for key in ("device", "threads", "dtype", "attention")}
    identity = {"runs": names, "records": [record.key for record in chosen], "warmup": warmup, **where}
    folder = first.method_folder.parent / FOLDER / digest(identity)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with closing(Lock(folder / ".lock")) as lock:
        if not lock.acquire():
            raise Busy(f"another process is at work in {folder}")
        model = resources.model(first.config.model, load_model)
        methods = {}
        for name, job in zip(names, jobs.values(), strict=True):
            job.method.prepare(model)
            if job.method.nothing_pruned is not None:
                methods["nothing_pruned"] = job.method.nothing_pruned
            if not job.is_baseline:
                methods[name] = job.method
        journal = Journal(folder / TIMES)
        journal.load()
        command = {"command": ["time", *sys.argv[2:]], "runs": names, "records": len(chosen)}
        write(folder / TIMING, json.dumps({**source, **where, **command}, indent=2) + "\n")
        questions = [question_of(model, first.prompt(record)) for record in chosen]
        retries = sum(row["retries"] for row in journal.rows.values())
        Timing(model, methods, source, warmup).time(
            questions, lambda question: question.prompt.record.key in journal.rows, retries, journal.add
        )
    return folder


def _answered(path: Path) -> set[Key]:
    return {key for key, row in RunFolder(path).rows(PREDICTIONS).items() if not row.get("error")}


def _in_turn(job: Job, answered: Sequence[set[Key]]) -> list[Record]:
    """Return the records that all runs have answered, one of each dataset in turn."""
    shared = [record for record in job.records if all(record.key in keys for keys in answered)]
    by_dataset = [[record for record in shared if record.dataset == name] for name in job.datasets]
    return [record for turn in zip_longest(*by_dataset) for record in turn if record is not None]
