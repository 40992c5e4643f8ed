"""Run one method on one model over the records of a task: answer all records, then time some."""

import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.config import Shard
from lazybench.data import data_label
from lazybench.errors import LazyBenchError
from lazybench.methods import build_method, describe_stages
from lazybench.model import environment
from lazybench.model.decoding import question_of
from lazybench.model.generation_config import answer_settings
from lazybench.run.answers import Answering
from lazybench.run.batches import Batches, Unmodified, batch_size
from lazybench.run.prepare import Job
from lazybench.run.resources import Resources
from lazybench.run.summary import scores_table, summarise
from lazybench.run.timing import Timing
from lazybench.store.journal import PREDICTIONS, TIMES, TRACES, Key
from lazybench.store.run_folder import RunFolder


def todo(job: Job, folder: RunFolder) -> dict[str, set[Key]]:
    """Return the records left to answer, to trace and to time, by journal.

    Failed ones are included if `retry_failed` is set or all have failed; else they are not timed either.
    """
    own, timed = ({record.key for record in records} for records in (job.own_records, job.timed_records))
    wanted = {PREDICTIONS: own, TRACES: own if job.config.trace else set(), TIMES: timed}
    rows = {name: folder.rows(name) for name in wanted}
    failed = {key for key, row in rows[PREDICTIONS].items() if row.get("error")}
    if job.config.retry_failed or failed >= own:
        rows = {name: {key: row for key, row in lines.items() if not row.get("error")} for name, lines in rows.items()}
    else:
        wanted[TIMES] -= failed
    return {name: keys - rows[name].keys() for name, keys in wanted.items()}


def run(job: Job, resources: Resources) -> Path:
    """Run a checked job, or resume an earlier start of it; return the run's folder.

    Raises:
        LazyBenchError: the model or the folder cannot be used.
    """
    config = job.config
    job = replace(job, method=build_method(config.method))  # models that the method loads are freed with the run
    described = environment.describe(config.model)
    folder = RunFolder(job.folder(described), Shard.parse(config.shard))
    print(f"weights: {described['weights_format']}", f"records: {data_label(config.data)}", *job.notes, sep="\n")
    if any(todo(job, folder).values()):
        folder.check()
        _complete(job, folder, resources.model(config.model), described)
    else:
        print("finished earlier: nothing to do")
    _report(job, folder)
    return folder.path


def _complete(job: Job, folder: RunFolder, model: PreTrainedModel, described: Mapping[str, Any]) -> None:
    """Answer, trace and time the records that are left."""
    config, source = job.config, environment.source(job.config.model)
    # An experiment that sweeps needs -m, even where `sys.argv` leaves a single job of it.
    flags = ["-m"] if HydraConfig.get().mode == RunMode.MULTIRUN else []
    start = {"command": ["run", *flags, *sys.argv[1:]], "on_engine": job.method.nothing_pruned is not None}
    start |= {} if job.method.label is None else {"appearance": {"label": job.method.label}}
    start["generation_config"] = answer_settings(model.generation_config)
    counts = {"records_of": dict(Counter(record.dataset for record in job.records))}
    with folder.opened({**job.settings, **counts}, {**described, **start}):
        job.method.prepare(model)
        if note := describe_stages(job.method, model):
            print(note)
        batches = Batches(model, batch_size(model, config, config.model.limit + job.max_new_tokens))
        path = job.unmodified_path(described, source["device"])
        unmodified = Unmodified(path, batches, config.trace_tokens if config.trace else 0)
        _answer(folder, Answering(job, batches, unmodified), source)
        _scores(job, folder)  # before the times
        _time(job, folder, model, source)


def _answer(folder: RunFolder, answering: Answering, source: Mapping[str, Any]) -> None:
    """Answer and trace the records that are left; `LazyBenchError` if all fail."""
    job, left, num_failed = answering.job, todo(answering.job, folder), 0
    for name, journal in folder.journals.items():
        journal.drop(left[name])  # failed ones
    if answered := len(job.own_records) - len(left[PREDICTIONS]):
        print(f"resuming {folder.path}: {answered} of {len(job.own_records)} are answered")
    records = [record for record in job.own_records if record.key in left[PREDICTIONS] | left[TRACES]]
    bar = tqdm(answering.answer(records), job.method.name, len(records), unit="record", disable=not records)
    for row, trace in bar:
        for name, line in ((TRACES, trace), (PREDICTIONS, row)):  # the row last: it marks its record as done
            if (row["dataset"], row["_id"]) in left[name]:
                folder.journals[name].add(line | source)
        if "error" in row:
            num_failed += 1
            bar.set_postfix(failed=num_failed)
    rows = folder.rows(PREDICTIONS)
    if all(errors := [rows[record.key].get("error") for record in job.own_records]):
        raise LazyBenchError(f"all {len(errors)} records failed: {errors[0]}; the same command tries them again")


def _time(job: Job, folder: RunFolder, model: PreTrainedModel, source: Mapping[str, Any]) -> None:
    """Time the records that no earlier start has timed."""
    if not (left := todo(job, folder)[TIMES]):
        return
    answered = folder.rows(PREDICTIONS)
    records = [record for record in job.timed_records if not answered[record.key].get("error")]
    questions = [question_of(model, job.prompt(record)) for record in records]
    methods = {} if job.is_baseline else {f"{job.method.name}/{folder.path.name}": job.method}
    timing = Timing(model, methods, source | {"threads": torch.get_num_threads()}, job.config.timing.warmup)
    timed = {key: row for key, row in folder.rows(TIMES).items() if key not in left}
    timing.time(questions, timed, folder.journals[TIMES].add)


def _scores(job: Job, folder: RunFolder) -> dict[str, Any] | None:
    """Write and return the scores of a run once all its records are answered; None before."""
    stored = (folder.rows(name) for name in (PREDICTIONS, TIMES))
    rows, times = ([own[record.key] for record in job.records if record.key in own] for own in stored)
    if len(rows) < len(job.records):
        return None
    scores = {"data": data_label(job.config.data), **summarise(rows, job.dataset_configs, times)}
    folder.write_scores(scores)
    return scores


def _report(job: Job, folder: RunFolder) -> None:
    rows, scores = folder.rows(PREDICTIONS), _scores(job, folder)
    is_whole, part = scores is not None, f"{len(rows)} of {len(job.records)} records: {folder.path}"
    print(f"\n{scores_table(scores)}\n" if is_whole else f"\nshard {job.config.shard} is done, {part}")
    if errors := [row["error"] for row in rows.values() if row.get("error")]:
        print(f"failed: {len(errors)} of {len(rows)} records: {errors[0]}")
    if is_whole:
        print(f"saved in {folder.path}")
        print(f"next, tables and figures of all runs: python -m lazybench report runs={shlex.quote(job.config.output)}")
