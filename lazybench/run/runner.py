"""Runs one method on one model over the records of a task."""

import shlex
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lazybench.analysis.labels import provenance, settings_said
from lazybench.config import RunConfig
from lazybench.data import data_label
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import stages_said
from lazybench.methods.calibrated import Calibrated
from lazybench.model import environment
from lazybench.model.decoding import answer_settings
from lazybench.model.loading import load_model
from lazybench.run.bench import Bench
from lazybench.run.job import Job, check_job, prepare
from lazybench.run.origin import command
from lazybench.run.sources import Sources
from lazybench.run.summary import disturbances, failures, kind, scores_table, summarise
from lazybench.run.tracing import trace
from lazybench.store.journal import PREDICTIONS, TRACES, read_rows
from lazybench.store.run_folder import RunFolder
from lazybench.store.survey import begins_anew
from lazyllm import LazyLLMError


def run(config: RunConfig, sources: Sources | None = None) -> Path:
    """Run what `config` says, or go on where an earlier start of the same run stopped.

    Args:
        config: the settings.
        sources: what the other jobs of a sweep have loaded.

    Returns:
        the run's folder.

    Raises:
        LazyBenchError: anything about the settings, the data, the model or the folder that cannot work.
    """
    sources = sources or Sources()
    job = prepare(config, sources)
    where = environment.describe(config.model)
    folder = RunFolder(job.folder(where), job.shard)
    print(f"weights: {where['weights_format']}\nrecords: {data_label(config.data)}")
    if job.left_out:
        print(job.left_out)
    if isinstance(job.method, Calibrated):
        print(f"calibrated for {job.method.budget}: {provenance(asdict(job.method))}")
    if said := begins_anew(folder.path, job.settings, where):
        print(said)
    scores = None if config.rerun else folder.finished(job.keys, config.trace)
    own = [record.key for record in job.own]
    if scores is None or folder.runs_again(own, config.trace, config.retry_failed):
        folder.check()
        check_job(job)
        # When and how it was asked for, on which CPU, and how the method is shown, are no part of the run's hash; nor
        # is the generation config, whose file counts as part of the weights.
        shown = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": command(), **environment.cpu()}
        shown |= {"appearance": job.method.appearance} if job.method.appearance else {}
        model = sources.model(config.model, load_model)
        shown["generation_config"] = answer_settings(model.generation_config)
        if changed := settings_said(shown["generation_config"]):
            print(f"generation config: {changed}")
        counts = {"records_of": dict(Counter(record.dataset for record in job.records))}
        with folder.opened({**job.settings, **counts}, {**where, **shown}, anew=config.rerun):
            if folder.earlier:
                print(f"running anew; the finished run is kept in {folder.earlier}")
            job.method.prepare(model)
            if said := stages_said(job.method, model):
                print(said)
            scores = _complete(folder, Bench(job, model), job)
    else:
        print("finished earlier: nothing to do")
    _report(job, scores, folder)
    return folder.path


def _complete(folder: RunFolder, bench: Bench, job: Job) -> Mapping[str, Any] | None:
    """Run the records that the folder lacks, then sum up all of them; None while other shards have some to run.

    Raises:
        LazyBenchError: all of them failed.
    """
    own = [record.key for record in job.own]
    failed = folder.runs_again(own, job.config.trace, job.config.retry_failed)
    folder.predictions.drop(failed)
    folder.traces.drop(failed)
    done, traced = (folder.done(name).keys() - failed for name in (PREDICTIONS, TRACES))
    missing = [record for record in job.own if record.key not in done]
    if len(missing) < len(job.own):
        print(f"going on in {folder.path}: {len(job.own) - len(missing)} of {len(job.own)} records are done")
    for record in missing:
        with suppress(RecordFailure, LazyLLMError):  # its row will say so
            bench.warm_up(record)
            break
    timed, told = 0, set()
    for record in tqdm(missing, unit="record", desc=job.method.name, disable=not missing):
        times = job.times(record)
        row = bench.row(record, backwards=timed % 2 == 1, times=times)
        folder.predictions.add(row)
        timed += times
        if (error := row.get("error")) and kind(error) not in told:
            told.add(kind(error))
            tqdm.write(f"failed: {record.dataset} {record.id}: {error}")
    if job.config.trace:
        untraced = [record for record in job.own if record.key not in traced]
        for record in tqdm(untraced, unit="record", desc="tracing", disable=not untraced):
            folder.traces.add(trace(bench, record))
    label = {"data": data_label(job.config.data)}
    scores = folder.finish(
        job.keys, job.config.trace, lambda rows: label | summarise((rows[key] for key in job.keys), job.facts)
    )
    rows = read_rows(folder.path, PREDICTIONS)
    if scores is None and all(errors := [rows[key].get("error") for key in own]):
        raise LazyBenchError(f"all {len(own)} records failed, and the same command runs them again: {errors[0]}")
    return scores


def _report(job: Job, scores: Mapping[str, Any] | None, folder: RunFolder) -> None:
    if scores is None:
        done = len(read_rows(folder.path, PREDICTIONS).keys() & set(job.keys))
        print(f"\nshard {job.config.shard} is done, {done} of the run's {len(job.keys)} records are: {folder.path}")
        return
    print(f"\n{scores_table(scores)}\n")
    for said in failures(read_rows(folder.path, PREDICTIONS).values()):
        print(said)
    if said := disturbances(scores):
        print(said)
    print(f"saved in {folder.path}")
    if job.config.data.source == "sample":
        print("next, on LongBench itself: add data=longbench, and data.root=FOLDER if it is on this machine")
    else:
        print(f"next, tables and figures of all runs: python -m lazybench report runs={shlex.quote(job.config.output)}")
