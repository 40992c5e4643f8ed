"""Plan a sweep: its jobs, the records already done, and each job's estimated time on an A100 and memory."""

from collections.abc import Sequence

from lazybench.analysis.console import table
from lazybench.analysis.labels import setting_of
from lazybench.data.sample import estimate_tokens
from lazybench.model import environment
from lazybench.model.cost import Pace, a100_pace, memory_gb, unmodified_operations
from lazybench.run.execute import todo
from lazybench.run.prepare import Job
from lazybench.run.resources import Resources
from lazybench.store.run_folder import RunFolder, read_settings
from lazybench.store.survey import runs_of

_TOKENS_PER_WORD = 1.4  # of English text, by the tokenizers of Llama 2 and SmolLM2


def show(jobs: Sequence[Job], resources: Resources) -> None:
    """Print the plan of checked jobs."""
    rows, num_unfinished, hours, answered = [], 0, [], set()
    for job in jobs:
        config, model = job.config, resources.skeleton(job.config.model)
        done, own = done_records(job), len(job.own_records)
        num_unfinished += done < own
        task = f"{config.task} {config.shard or ''}".rstrip()
        # The first job that needs the unmodified model's answers generates them, with any method.
        unmodified = repr(config.model), repr(config.data), task
        is_first = unmodified not in answered
        answered.add(unmodified)
        method = f"{job.method.name} {setting_of(job.method.name, job.settings['method'])}"
        row = {"method": method, "model": config.model.name, "data": config.data.name, "task": task}
        row |= {"records done": f"{done}/{own}", "A100 hours": "?", "GPU GB": "?"}
        rows.append(row)
        if model is None:
            continue
        lengths = prompt_lengths(job)
        tokens = int(max(lengths)) + job.max_new_tokens
        pace = a100_pace(model, config.model, tokens, config.batch)
        seconds = estimate(job, unmodified_operations(model, lengths), pace, is_first)
        hours.append(seconds * (own - done) / own / 3600)
        row |= {"A100 hours": _format_hours(hours[-1]), "GPU GB": f"{memory_gb(model, config.model, tokens):.0f}"}
    print(table([*rows[0]], [[*row.values()] for row in rows], left=4))
    for note in dict.fromkeys(note for job in jobs for note in job.notes):
        print(note)
    print(f"\n{len(jobs)} job{'s' * (len(jobs) > 1)}, {num_unfinished} of them with records to run")
    if hours:
        print(f"A100 hours of {len(hours)} jobs together: {_format_hours(sum(hours))} at most")
    for reason in resources.missing.values():
        print(f"on this machine the run would fail: {reason}")


def _format_hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 0.05 or hours == 0 else "<0.1"


def done_records(job: Job) -> int:
    """Count the records that are done of a job's run, on any machine."""
    for path in runs_of(job.method_folder, job.settings, job.dataset_configs):
        if read_settings(path)[1].get("results_version") == environment.RESULTS_VERSION:
            return len(job.own_records) - len(set.union(*todo(job, RunFolder(path)).values()))
    return 0


def estimate(job: Job, operations: float, pace: Pace, answers_unmodified: bool = True) -> float:
    """Estimate an upper bound of the seconds that a job's records take.

    Args:
        job: the job.
        operations: of one prefill of each record, summed.
        pace: how fast the GPU is, on which an untimed pass precedes each new shape that is timed.
        answers_unmodified: whether the job generates the unmodified model's answers, which no other job has.
    """
    records, timing, method = len(job.own_records), job.config.timing, job.method
    prefill = pace.operation_s * operations
    steps = sum(job.dataset_configs[record.dataset].max_new_tokens for record in job.own_records)
    batched = prefill + pace.batched_step_s * steps
    answers = batched if answers_unmodified or job.is_baseline else 0.0
    traces = 0.0
    if not job.is_baseline:
        answers += method.repeats * (batched + (method.ttft_bound - 1) * prefill)
        # The unmodified model's logits, which another process may have kept for itself, and the method's along them.
        start = pace.batched_step_s * job.config.trace_tokens * records
        traces = (0.0 if answers_unmodified else prefill + start) + method.repeats * start
    # Seconds of an untimed first token per record, and of each answer in a batch of one, after that warm-up.
    first = prefill + 2 * pace.step_s * records
    alone = prefill + pace.step_s * steps + first
    pair = first + (0.0 if job.is_baseline else first + (method.ttft_bound - 1) * prefill)
    timed = len(job.timed_records) / records
    times = timed * (2 * alone + (0.0 if job.is_baseline else alone + 2 * (method.ttft_bound - 1) * prefill))
    return answers + job.config.trace * traces + times + timing.warmup * (timed > 0) * pair / records


def prompt_lengths(job: Job) -> list[float]:
    """Estimate the number of tokens of each of a job's prompts."""
    limit, lengths = job.config.model.limit, []
    for record in job.own_records:
        tokens = max(record.length * _TOKENS_PER_WORD, estimate_tokens(record.context))  # of code a word is many
        lengths.append(min(tokens, limit) if job.dataset_configs[record.dataset].truncate else tokens)
    return lengths
