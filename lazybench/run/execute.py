"""Run one method on one model over the records of a task: answer all records, then time some."""

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.analysis.labels import format_settings, provenance, title_of
from lazybench.data import Record, data_label
from lazybench.errors import LazyBenchError, one_line
from lazybench.methods import build_method, describe_stages
from lazybench.methods.matched import Matched
from lazybench.model import environment
from lazybench.model.decoding import question_of
from lazybench.model.generation_config import answer_settings
from lazybench.model.loading import load_model
from lazybench.run.answers import Answering
from lazybench.run.batches import Batches, batch_size
from lazybench.run.prepare import Job
from lazybench.run.resources import Resources
from lazybench.run.summary import error_kind, explanations, failures, scores_table, summarise
from lazybench.run.timing import Timing
from lazybench.run.unmodified import Unmodified
from lazybench.store.journal import PREDICTIONS, TIMES, TRACES, Rows
from lazybench.store.run_folder import RunFolder
from lazybench.store.survey import changes_since_earlier_run


@dataclass(frozen=True)
class Todo:
    """The records that a job still has to answer, to trace and to time."""

    answers: Sequence[Record]
    traces: Sequence[Record]
    times: Sequence[Record]

    def __bool__(self) -> bool:
        return bool(self.answers or self.traces or self.times)


def todo(job: Job, folder: RunFolder) -> Todo:
    """Return the records left to run; failed ones are included if `retry_failed` is set or all have failed."""
    answered, traced, timed = (folder.rows(name) for name in (PREDICTIONS, TRACES, TIMES))
    failed = {key for key, row in answered.items() if row.get("error")}
    records = job.own_records
    if job.config.retry_failed or failed.issuperset(record.key for record in records):
        answered = {key: row for key, row in answered.items() if key not in failed}
        traced = {key: row for key, row in traced.items() if not row.get("error")}
        timed = {key: row for key, row in timed.items() if not row.get("error")}
        failed = set()
    return Todo(
        [record for record in records if record.key not in answered],
        [record for record in records if job.config.trace and record.key not in traced],
        [record for record in job.timed_records if record.key not in timed and record.key not in failed],
    )


def is_finished(job: Job, folder: RunFolder) -> bool:
    """Return whether all records of a job's run are done, those of other shards included."""
    return not todo(replace(job, config=replace(job.config, shard=None)), folder)


def run(job: Job, resources: Resources, explained: bool = False) -> Path:
    """Run a prepared and checked job, or resume an earlier start of it; return the run's folder.

    `resources` are shared by the jobs of a sweep. If `explained`, also print an example and explain the numbers.

    Raises:
        LazyBenchError: the model or the folder cannot be used.
    """
    config = job.config
    job = replace(job, method=build_method(config.method))  # models that the method loads are freed with the run
    described = environment.describe(config.model)
    folder = RunFolder(job.folder(described), job.shard)
    print(f"weights: {described['weights_format']}\nrecords: {data_label(config.data)}")
    for note in job.notes:
        print(note)
    if isinstance(job.method, Matched):
        print(f"matched to {job.method.speedup}: {' '.join(provenance(asdict(job.method))).rstrip()}")
    if note := changes_since_earlier_run(folder.path, job.settings, described, job.used_configs):
        print(note)
    if config.rerun and (aside := folder.set_aside(lambda: is_finished(job, folder))):
        print(f"running again; the finished run is kept in {aside}")
    if todo(job, folder):
        folder.check()
        _complete(job, folder, resources.model(config.model, load_model), described)
    else:
        print("finished earlier: nothing to do")
    _report(job, folder, explained)
    return folder.path


def _complete(job: Job, folder: RunFolder, model: PreTrainedModel, described: Mapping[str, Any]) -> None:
    """Answer, trace and time the records that are left."""
    config, source = job.config, environment.source(job.config.model)
    # An experiment that sweeps needs -m, even where `sys.argv` leaves a single job of it.
    flags = ["-m"] if HydraConfig.get().mode == RunMode.MULTIRUN else []
    start = {"command": ["run", *flags, *sys.argv[1:]], "on_engine": job.method.nothing_pruned is not None}
    start |= {} if job.method.label is None else {"appearance": {"label": job.method.label}}
    start["generation_config"] = answer_settings(model.generation_config)
    if changed := format_settings(start["generation_config"]):
        print(f"generation config: {changed}")
    counts = {"records_of": dict(Counter(record.dataset for record in job.records))}
    with folder.opened({**job.settings, **counts}, {**described, **start}):
        job.method.prepare(model)
        if note := describe_stages(job.method, model):
            print(note)
        batches = Batches(model, batch_size(model, config, config.model.limit + job.max_new_tokens))
        path = job.unmodified_path(described, source["device"])
        unmodified = Unmodified(path, batches, config.trace_tokens if config.trace else 0)
        _answer(folder, Answering(job, model, batches, unmodified, source))
        _scores(job, folder)  # before the times
        _time(job, folder, model, source)


def _answer(folder: RunFolder, answering: Answering) -> None:
    """Answer and trace the records that are left; `LazyBenchError` if all fail."""
    job, left = answering.job, todo(answering.job, folder)
    answers, traces = folder.journals[PREDICTIONS], folder.journals[TRACES]
    to_answer, to_trace = ({record.key for record in records} for records in (left.answers, left.traces))
    for journal, keys in ((answers, to_answer), (traces, to_trace)):
        journal.drop(keys)  # failed ones
    if len(to_answer) < len(job.own_records):
        print(f"resuming {folder.path}: {len(job.own_records) - len(to_answer)} of {len(job.own_records)} are answered")
    printed: set[str] = set()
    records = [record for record in job.own_records if record.key in to_answer | to_trace]
    with tqdm(total=len(records), unit="record", desc=job.method.name, disable=not records) as progress:

        def write(row: dict[str, Any]) -> None:
            progress.update()
            if (row["dataset"], row["_id"]) in to_answer:
                answers.add(row)
            if (error := row.get("error")) and error_kind(error) not in printed:
                printed.add(error_kind(error))
                tqdm.write(f"failed: {row['dataset']} {row['_id']}: {error}")

        def trace(row: dict[str, Any]) -> None:
            if (row["dataset"], row["_id"]) in to_trace:
                traces.add(row)

        answering.answer(records, write, trace)
    rows = folder.rows(PREDICTIONS)
    if all(errors := [rows[record.key].get("error") for record in job.own_records]):
        raise LazyBenchError(f"all {len(errors)} records failed: {errors[0]}; the same command tries them again")


def _time(job: Job, folder: RunFolder, model: PreTrainedModel, source: Mapping[str, Any]) -> None:
    """Time the records that no earlier start has timed."""
    left, times = {record.key for record in todo(job, folder).times}, folder.journals[TIMES]
    times.drop(left)  # failed ones
    if not left:
        return
    answered = folder.rows(PREDICTIONS)
    records = [record for record in job.timed_records if not answered[record.key].get("error")]
    questions = [question_of(model, job.prompt(record)) for record in records]
    methods = {} if job.is_baseline else {f"{job.method.name}/{folder.path.name}": job.method}
    timing = Timing(model, methods, source | {"threads": torch.get_num_threads()}, job.config.timing.warmup)
    retries = sum(row["retries"] for row in times.rows.values())
    timing.time(questions, lambda question: question.prompt.record.key not in left, retries, times.add)


def _scores(job: Job, folder: RunFolder) -> dict[str, Any] | None:
    """Write and return the scores of a run once all its records are answered; None before."""
    rows, times = folder.rows(PREDICTIONS), folder.rows(TIMES)
    if not rows.keys() >= {*job.keys}:
        return None
    own_times = [times[key] for key in job.keys if key in times]
    scores = {"data": data_label(job.config.data)}
    scores |= summarise([rows[key] for key in job.keys], job.dataset_configs, times=own_times)
    folder.write_scores(scores)
    return scores


def _example(job: Job, rows: Rows) -> str:
    """Format the first record that did not fail, with the unmodified model's answer and the method's, a line each."""
    answered = (record for record in job.records if not rows[record.key].get("error"))
    if (record := next(answered, None)) is None:
        return ""
    row, unmodified = rows[record.key], "unmodified"
    texts = {"question": record.input or None, "reference": " | ".join(record.answers) or None}
    texts[unmodified] = row["unmodified_prediction"]
    texts[unmodified if job.is_baseline else title_of(job.method.name)] = row["prediction"]
    width = max(map(len, texts))
    lines = [f"  {title:<{width}}  {one_line(text, 100)}" for title, text in texts.items() if text is not None]
    return "\n".join([f"example, {record.dataset}:", *lines])


def _report(job: Job, folder: RunFolder, explained: bool) -> None:
    rows, scores = folder.rows(PREDICTIONS), _scores(job, folder)
    if scores is None:
        done = len(rows.keys() & {*job.keys})
        print(f"\nshard {job.config.shard} is done; the run has {done} of {len(job.keys)} records: {folder.path}")
        return
    if explained:
        print(f"\n{_example(job, rows)}".rstrip())
    print(f"\n{scores_table(scores)}\n")
    for line in [*failures(rows.values()), *(explanations(scores, job.method.name) if explained else ())]:
        print(line)
    print(f"saved in {folder.path}")
    if job.config.data.source == "sample":
        print("next, on LongBench itself: add data=longbench, and data.root=FOLDER if it is on this machine")
    else:
        print(f"next, tables and figures of all runs: python -m lazybench report runs={shlex.quote(job.config.output)}")
