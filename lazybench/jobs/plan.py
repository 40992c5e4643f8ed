"""Plan a sweep: its jobs, the records already done, and each job's estimated time and memory."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from lazybench.analysis.console import table
from lazybench.analysis.labels import setting_of
from lazybench.data.sample import estimate_tokens
from lazybench.errors import LazyBenchError
from lazybench.model import environment
from lazybench.model.cost import Pace, a100_pace, measure_pace, memory_gb, unpruned_operations
from lazybench.run.prepare import Job
from lazybench.run.resources import Resources
from lazybench.store.run_folder import SCORES, RunFolder
from lazybench.store.survey import read_settings, runs_of

_TOKENS_PER_WORD = 1.4  # of English text, by the tokenizers of Llama 2 and SmolLM2
_TRACED = 16  # tokens of a trace's answer


def show(jobs: Sequence[Job], resources: Resources, in_turn: bool) -> None:
    """Print the plan.

    Args:
        jobs: the checked jobs.
        resources: what they were loaded from.
        in_turn: whether this process would run the jobs one after the other.
    """
    rows, num_unfinished, paces, machines, hours = [], 0, {}, {}, {"hours here": [], "A100 hours": []}
    for job in jobs:
        config, model, name = job.config, resources.skeleton(job.config.model), repr(job.config.model)
        if name not in paces:
            paces[name] = None if model is None or not in_turn else measure_pace(model, config.model)
            machines[name] = _this_machine(job) if in_turn else None
        done, own = done_records(job, machines[name]), len(job.own_records)
        num_unfinished += done < own
        task = f"{config.task} {config.shard or ''}".rstrip()
        method = f"{job.method.name} {setting_of(job.method.name, job.settings['method'])}"
        row = {"method": method, "model": config.model.name, "data": config.data.name, "task": task}
        row |= {"records done": f"{done}/{own}"} | dict.fromkeys((*hours, "GPU GB"), "?")
        rows.append(row)
        if model is None:
            continue
        lengths = prompt_lengths(job)
        prefill = unpruned_operations(model, lengths)
        for key, pace in zip(hours, (paces[name], a100_pace(model, config.model)), strict=True):
            if pace is not None:
                hours[key].append(estimate(job, prefill, pace) * (own - done) / own / 3600)
                row[key] = _format_hours(hours[key][-1])
        row["GPU GB"] = f"{memory_gb(model, config.model, max(lengths) + job.max_new_tokens):.0f}"
    print(table([*rows[0]], [[*row.values()] for row in rows], left=4))
    for note in filter(None, dict.fromkeys(job.left_out for job in jobs)):
        print(note)
    print(f"\n{len(jobs)} job{'s' * (len(jobs) > 1)}, {num_unfinished} of them with records to run")
    for key, values in hours.items():
        if values:
            print(f"{key} of {len(values)} jobs together: {_format_hours(sum(values))} at most")
    for reason in resources.missing.values():
        print(f"run here, it would end with: {reason}")


def _format_hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 0.05 or hours == 0 else "<0.1"


def _this_machine(job: Job) -> dict[str, Any] | None:
    """Describe this machine as a job's environment; None if the job cannot run here."""
    with suppress(LazyBenchError):
        return environment.describe(job.config.model) if job.settings["weights"] else None
    return None


def done_records(job: Job, machine: dict[str, Any] | None) -> int:
    """Count a job's records that are done on a machine; None is any."""
    any_machine = machine is None
    for folder in runs_of(job.method_folder, job.settings, job.used_facts) if any_machine else [job.folder(machine)]:
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
