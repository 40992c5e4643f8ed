"""Plan a sweep: its jobs, the records already done, and each job's estimated time and memory."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from lazybench.analysis.console import table
from lazybench.analysis.labels import setting_of
from lazybench.data.sample import estimate_tokens
from lazybench.errors import LazyBenchError
from lazybench.jobs import slurm
from lazybench.model import environment
from lazybench.model.cost import Pace, a100_pace, measure_pace, memory_gb, unpruned_operations
from lazybench.run.prepare import Job
from lazybench.run.resources import Resources
from lazybench.store.run_folder import SCORES, RunFolder
from lazybench.store.survey import read_settings, runs_of

# English text: tokens of a word, by the tokenizers of Llama 2 and SmolLM2.
_TOKENS_PER_WORD = 1.4
_TRACED = 16  # tokens of a trace's answer
# Settings of a Slurm launcher that a plan shows.
_REQUESTS = "partition account qos constraint gres gpus_per_node cpus_per_task mem_gb timeout_min"


def show(jobs: Sequence[Job], resources: Resources, launcher: Any, in_turn: bool) -> None:
    """Print the plan.

    Args:
        jobs: the checked jobs.
        resources: what they were loaded from.
        launcher: Hydra's settings of the launcher.
        in_turn: whether this process runs the jobs one after the other.
    """
    rows, here, there, unfinished, paces, machines = [], [], [], 0, {}, {}
    submits = slurm.is_slurm(launcher)
    for job in jobs:
        config, model = job.config, resources.skeleton(job.config.model)
        if (name := repr(config.model)) not in paces:
            paces[name] = None if model is None or submits else measure_pace(model, config.model)
            machines[name] = this_machine(job) if in_turn else None
        done, own = done_records(job, machines[name]), len(job.own_records)
        unfinished += done < own
        share = (own - done) / own / 3600
        lengths = prompt_lengths(job)
        prefill = None if model is None else unpruned_operations(model, lengths)
        here.append(None if paces[name] is None else estimate(job, prefill, paces[name]) * share)
        there.append(None if model is None else estimate(job, prefill, a100_pace(model, config.model)) * share)
        task = config.task + (f" {config.shard}" if config.shard else "")
        memory = "?" if model is None else f"{memory_gb(model, config.model, max(lengths) + job.max_new_tokens):.0f}"
        method = f"{job.method.name} {setting_of(job.method.name, job.settings['method'])}"
        names = [method, config.model.name, config.data.name, task]
        rows.append([*names, f"{done}/{own}", _hours(here[-1]), _hours(there[-1]), memory])
    print(
        table(["method", "model", "data", "task", "records done", "hours here", "A100 hours", "GPU GB"], rows, left=4)
    )
    for note in filter(None, dict.fromkeys(job.left_out for job in jobs)):
        print(note)
    print(f"\n{len(jobs)} job{'s' * (len(jobs) > 1)}, {unfinished} of them with records to run")
    for hours, label in (
        (here, "on this machine at most, by layers measured just now"),
        (there, "of one A100 at most: every answer as long as its dataset allows"),
    ):
        if known := [value for value in hours if value is not None]:
            print(f"about {_hours(sum(known))} hours {label}")
    if unknown := there.count(None):
        print(f"{unknown} of a model whose size cannot be had here, marked ? and not counted in hours")
    if submits:
        print(_submission(launcher, len(jobs)))
    for why in resources.missing.values():
        print(f"run here, it would end with: {why}")


def _submission(launcher: Any, jobs: int) -> str:
    """Describe what a sweep would request of Slurm."""
    requests = " ".join(f"{key}={launcher[key]}" for key in _REQUESTS.split() if launcher.get(key) is not None)
    parallel = min(launcher.get("array_parallelism") or jobs, jobs)
    text = f"run -m submits an array of {jobs} to Slurm, {parallel} at a time, each with {requests}"
    return text + (f"; there is no {missing} here to submit it with" if (missing := slurm.missing_programs()) else "")


def _hours(hours: float | None) -> str:
    return "?" if hours is None else f"{hours:.1f}" if hours >= 0.05 or hours == 0 else "<0.1"


def this_machine(job: Job) -> dict[str, Any] | None:
    """Describe this machine as a job's environment; None if the job cannot run here."""
    with suppress(LazyBenchError):
        return environment.describe(job.config.model) if job.settings["weights"] else None
    return None


def done_records(job: Job, machine: dict[str, Any] | None) -> int:
    """Count a job's records that are done on a machine; None is any."""
    for folder in (
        runs_of(job.method_folder, job.settings, job.used_facts) if machine is None else [job.folder(machine)]
    ):
        if read_settings(folder)[1].get("results_version") != environment.RESULTS_VERSION:
            continue
        if job.config.rerun and (folder / SCORES).exists():
            return 0
        run, own = RunFolder(folder), {record.key for record in job.own_records}
        return len(own & run.done().keys() - run.runs_again(own, False, job.config.retry_failed))
    return 0


def estimate(job: Job, operations: float, pace: Pace) -> float:
    """Estimate the most seconds that a job's records take; prefill of each once takes `operations` in all."""
    records, timing, method = len(job.own_records), job.config.timing, job.method
    prefill = pace.operation_s * operations
    answer = prefill + pace.step_s * sum(job.facts[record.dataset].max_new_tokens for record in job.own_records)
    untimed = prefill + pace.step_s * records  # of two tokens each
    first = pace.warms * untimed
    passes = method.repeats * (answer + (method.prefills - 1) * prefill + first)
    beside = len(job.paired_methods) * (answer + first) / timing.every
    start = _TRACED * pace.step_s * records
    traced = prefill + start + method.repeats * (method.prefills * prefill + start)
    inside = answer * (method.keep_1 is not None) / timing.every
    warmup = timing.warmup * (method.repeats * method.prefills + len(job.paired_methods)) * untimed / records
    return passes + beside + warmup + job.config.trace * (traced + inside)


def prompt_lengths(job: Job) -> list[float]:
    """Estimate the number of tokens of each of a job's prompts."""
    limit, lengths = job.config.model.limit, []
    for record in job.own_records:
        tokens = max(record.length * _TOKENS_PER_WORD, estimate_tokens(record.context))  # of code a word is many
        lengths.append(min(tokens, limit) if job.facts[record.dataset].truncate else tokens)
    return lengths
