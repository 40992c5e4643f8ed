"""Run one method on one model over the records of a task."""

import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from tqdm import tqdm

from lazybench.analysis.labels import format_settings, provenance, title_of
from lazybench.data import data_label
from lazybench.errors import LazyBenchError, RecordFailure, one_line
from lazybench.methods import build_method, describe_stages
from lazybench.methods.calibrated import Calibrated
from lazybench.model import environment
from lazybench.model.generation_config import answer_settings
from lazybench.model.loading import load_model
from lazybench.run.batches import Batches, batch_size
from lazybench.run.prepare import Job
from lazybench.run.record_runner import RecordRunner
from lazybench.run.resources import Resources
from lazybench.run.summary import error_kind, explanations, failures, scores_table, summarise
from lazybench.run.unmodified import Unmodified
from lazybench.store.journal import PREDICTIONS, TRACES, Rows, read_rows
from lazybench.store.run_folder import RunFolder
from lazybench.store.survey import changes_since_earlier_run
from lazyllm import LazyLLMError


def run(job: Job, resources: Resources, explained: bool = False) -> Path:
    """Run a prepared and checked job, or resume an earlier start of it; return the run's folder.

    `resources` are shared by the jobs of a sweep. If `explained`, also print an example, and what the numbers mean.

    Raises:
        LazyBenchError: anything about the model or the folder that cannot work.
    """
    config = job.config
    job = replace(job, method=build_method(config.method))  # what the method loads is freed with the run
    machine = environment.describe(config.model)
    folder = RunFolder(job.folder(machine), job.shard)
    print(f"weights: {machine['weights_format']}\nrecords: {data_label(config.data)}")
    for note in job.notes:
        print(note)
    if isinstance(job.method, Calibrated):
        print(f"calibrated for {job.method.budget}: {' '.join(provenance(asdict(job.method))).rstrip()}")
    if note := changes_since_earlier_run(folder.path, job.settings, machine, job.used_facts):
        print(note)
    scores = None if config.rerun else folder.finished(job.keys, config.trace)
    own_keys = [record.key for record in job.own_records]
    if scores is None or folder.records_to_rerun(own_keys, config.trace, config.retry_failed):
        folder.check()
        model = resources.model(config.model, load_model)
        # An experiment that sweeps needs -m, even where `sys.argv` leaves a single job of it.
        flags = ["-m"] if HydraConfig.get().mode == RunMode.MULTIRUN else []
        start: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": ["run", *flags, *sys.argv[1:]]}
        start |= environment.cpu()
        start |= {} if job.method.label is None else {"appearance": {"label": job.method.label}}
        start["generation_config"] = answer_settings(model.generation_config)
        tokens = config.model.limit + job.max_new_tokens
        batches = Batches(model, batch_size(model, config, tokens))
        start |= {"batch": batches.size, "on_engine": job.method.keep_1 is not None}
        unmodified = Unmodified(job.unmodified_path(machine), batches, config.trace_tokens if config.trace else 0)
        if changed := format_settings(start["generation_config"]):
            print(f"generation config: {changed}")
        counts = {"records_of": dict(Counter(record.dataset for record in job.records))}
        with folder.opened({**job.settings, **counts}, {**machine, **start}, anew=config.rerun):
            if folder.earlier:
                print(f"running anew; the finished run is kept in {folder.earlier}")
            job.method.prepare(model)
            if note := describe_stages(job.method, model):
                print(note)
            scores = _complete(folder, RecordRunner(job, model, batches, unmodified))
    else:
        print("finished earlier: nothing to do")
    _report(job, scores, folder, explained)
    return folder.path


def _complete(folder: RunFolder, runner: RecordRunner) -> Mapping[str, Any] | None:
    """Run the records that the folder lacks, then summarise all; None while other shards have some to run.

    Raises:
        LazyBenchError: all of them failed.
    """
    job = runner.job
    own_keys = [record.key for record in job.own_records]
    failed = folder.records_to_rerun(own_keys, job.config.trace, job.config.retry_failed)
    folder.predictions.drop(failed)
    folder.traces.drop(failed)
    done, traced = (folder.done(name).keys() - failed for name in (PREDICTIONS, TRACES))
    missing = [record for record in job.own_records if record.key not in done]
    if len(missing) < len(own_keys):
        print(f"resuming {folder.path}: {len(own_keys) - len(missing)} of {len(own_keys)} records are done")
    timed = [record for record in missing if job.is_timed(record)]
    for record in timed:
        with suppress(RecordFailure, LazyLLMError):  # its row will have the error
            runner.warm_up(record)
            break
    printed: set[str] = set()
    with tqdm(total=len(missing), unit="record", desc=job.method.name, disable=not missing) as progress:

        def write(row: dict[str, Any]) -> None:
            folder.predictions.add(row)
            progress.update()
            if (error := row.get("error")) and error_kind(error) not in printed:
                printed.add(error_kind(error))
                tqdm.write(f"failed: {row['dataset']} {row['_id']}: {error}")

        for number, record in enumerate(timed):
            write(runner.timed_row(record, method_first=number % 2 == 1))
        runner.answer([record for record in missing if not job.is_timed(record)], write, folder.traces.add)
    if job.config.trace:
        traced |= folder.traces.rows.keys()
        untraced = [record for record in job.own_records if record.key not in traced]
        with tqdm(total=len(untraced), unit="record", desc="tracing", disable=not untraced) as progress:

            def write_trace(row: dict[str, Any]) -> None:
                folder.traces.add(row)
                progress.update()

            runner.answer(untraced, None, write_trace)
    label = {"data": data_label(job.config.data)}
    scores = folder.finish(
        job.keys, job.config.trace, lambda rows: label | summarise((rows[key] for key in job.keys), job.facts)
    )
    rows = read_rows(folder.path, PREDICTIONS)
    if scores is None and all(errors := [rows[key].get("error") for key in own_keys]):
        raise LazyBenchError(f"all {len(errors)} records failed: {errors[0]}; the same command tries them again")
    return scores


def _example(job: Job, rows: Rows) -> str:
    """Format the first record that did not fail, with the unmodified model's answer and the method's, a line each."""
    answered = (record for record in job.records if not rows[record.key].get("error"))
    if (record := next(answered, None)) is None:
        return ""
    row, unmodified = rows[record.key], "unmodified"
    texts = {"question": record.input or None, "reference": " | ".join(record.answers) or None}
    texts[unmodified] = row.get("baseline_prediction")
    texts[unmodified if job.is_baseline else title_of(job.method.name)] = row["prediction"]
    width = max(map(len, texts))
    lines = [f"  {title:<{width}}  {one_line(text, 100)}" for title, text in texts.items() if text is not None]
    return "\n".join([f"example, {record.dataset}:", *lines])


def _report(job: Job, scores: Mapping[str, Any] | None, folder: RunFolder, explained: bool) -> None:
    rows = read_rows(folder.path, PREDICTIONS)
    if scores is None:
        done = len(rows.keys() & set(job.keys))
        print(f"\nshard {job.config.shard} is done; the run has {done} of {len(job.keys)} records: {folder.path}")
        return
    if explained:
        print(f"\n{_example(job, rows)}".rstrip())
    print(f"\n{scores_table(scores)}\n")
    for line in [*failures(rows.values()), *(explanations(scores, job.method.name) if explained else ())]:
        print(line)
    if disturbed := sum(numbers["disturbed"] for numbers in scores["datasets"].values()):
        advice = "end it, or set OMP_NUM_THREADS to the CPUs that are free, and run anew with rerun=true"
        print(f"other work on this machine disturbed {disturbed} records, which are in no speedup: {advice}")
    print(f"saved in {folder.path}")
    if job.config.data.source == "sample":
        print("next, on LongBench itself: add data=longbench, and data.root=FOLDER if it is on this machine")
    else:
        print(f"next, tables and figures of all runs: python -m lazybench report runs={shlex.quote(job.config.output)}")
