"""What a sweep would do: its jobs, what is already done, and about how long and how much memory each takes."""

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from timeit import repeat
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lazybench.analysis.console import table
from lazybench.analysis.labels import setting_of
from lazybench.config import ModelConfig
from lazybench.data.sample import estimate_tokens
from lazybench.errors import LazyBenchError
from lazybench.jobs import slurm
from lazybench.model import environment
from lazybench.model.device import device_of, dtype_of
from lazybench.model.loading import cached
from lazybench.model.work import unpruned_operations
from lazybench.run.job import Job
from lazybench.run.sources import Sources
from lazybench.store.run_folder import SCORES, RunFolder
from lazybench.store.survey import about, runs_of

# One A100 in bfloat16: what prefilling reaches of its 312e12 operations a second, and Python's time between kernels.
_OPERATIONS_PER_S = 140e12
_LAYER_STEP_S = 0.9e-3
_BYTES_PER_S = 1.5e12
# English text: tokens of a word, by the tokenizers of Llama 2 and SmolLM2.
_TOKENS_PER_WORD = 1.4
_CONTEXT_BYTES = 1e9  # what CUDA and its libraries take for themselves
# Tokens of a trace's answer, and of the prompt that this machine is measured with.
_TRACED, _MEASURED = 16, 1024
# What a Slurm launcher may ask for.
_ASKED = "partition account qos constraint gres gpus_per_node cpus_per_task mem_gb timeout_min"


class Pace(NamedTuple):
    """Seconds of an operation in prefilling and of a decode step, and whether each prompt's shape is warmed up."""

    operation_s: float
    step_s: float
    warms: bool


def show(jobs: Sequence[Job], sources: Sources, launcher: Any, in_turn: bool) -> None:
    """Print the plan.

    Args:
        jobs: the checked jobs.
        sources: what they were loaded from.
        launcher: Hydra's settings of what starts the jobs.
        in_turn: whether that is this process, which runs them one after the other.
    """
    rows, here, there, unfinished, paces, machines = [], [], [], 0, {}, {}
    submits = slurm.is_slurm(launcher)
    for job in jobs:
        config, model = job.config, sources.skeleton(job.config.model)
        if (name := repr(config.model)) not in paces:
            paces[name] = None if model is None or submits else measure(model, config.model)
            machines[name] = this_machine(job) if in_turn else None
        done, own = done_records(job, machines[name]), len(job.own)
        unfinished += done < own
        share = (own - done) / own / 3600
        lengths = prompt_lengths(job)
        prefill = None if model is None else unpruned_operations(model, lengths)
        here.append(None if paces[name] is None else estimate(job, prefill, paces[name]) * share)
        there.append(None if model is None else estimate(job, prefill, on_a100(model, config.model)) * share)
        task = config.task + (f" {config.shard}" if config.shard else "")
        memory = "?" if model is None else f"{memory_gb(job, model, max(lengths)):.0f}"
        method = f"{job.method.name} {setting_of(job.method.name, job.settings['method'])}"
        about_job = [method, config.model.name, config.data.name, task]
        rows.append([*about_job, f"{done}/{own}", _hours(here[-1]), _hours(there[-1]), memory])
    print(
        table(["method", "model", "data", "task", "records done", "hours here", "A100 hours", "GPU GB"], rows, left=4)
    )
    for said in filter(None, dict.fromkeys(job.left_out for job in jobs)):
        print(said)
    print(f"\n{len(jobs)} job{'s' * (len(jobs) > 1)}, {unfinished} of them with records to run")
    for hours, said in (
        (here, "on this machine at most, by layers measured just now"),
        (there, "of one A100 at most: every answer as long as its dataset allows"),
    ):
        if known := [of for of in hours if of is not None]:
            print(f"about {_hours(sum(known))} hours {said}")
    if unknown := there.count(None):
        print(f"{unknown} of a model whose size cannot be had here, marked ? and not counted in hours")
    if submits:
        print(_submission(launcher, len(jobs)))
    for why in sources.missing.values():
        print(f"run here, it would end with: {why}")


def _submission(launcher: Any, jobs: int) -> str:
    """What a sweep of so many jobs would ask Slurm for."""
    asked = " ".join(f"{key}={launcher[key]}" for key in _ASKED.split() if launcher.get(key) is not None)
    most = launcher.get("array_parallelism") or jobs
    said = f"run -m submits an array of {jobs} to Slurm, {min(most, jobs)} at a time, each with {asked}"
    return said + (f"; there is no {missing} here to submit it with" if (missing := slurm.missing_programs()) else "")


def _hours(hours: float | None) -> str:
    return "?" if hours is None else f"{hours:.1f}" if hours >= 0.05 or hours == 0 else "<0.1"


def this_machine(job: Job) -> dict[str, Any] | None:
    """What a job would run on here; None where it cannot."""
    with suppress(LazyBenchError):
        return environment.describe(job.config.model) if job.settings["weights"] else None
    return None


def done_records(job: Job, where: dict[str, Any] | None) -> int:
    """How many of a job's records are done on the machine `where`; None is any."""
    for folder in runs_of(job.place, job.settings) if where is None else [job.folder(where)]:
        if about(folder)[1].get("results_version") != environment.RESULTS_VERSION:
            continue
        if job.config.rerun and (folder / SCORES).exists():
            return 0
        run, own = RunFolder(folder), {record.key for record in job.own}
        return len(own & run.done().keys() - run.runs_again(own, False, job.config.retry_failed))
    return 0


def on_a100(model: PreTrainedModel, config: ModelConfig) -> Pace:
    """By the model's size: decode steps read all weights and wait for Python."""
    layers = model.config.get_text_config().num_hidden_layers
    step = layers * _LAYER_STEP_S + model.num_parameters() * _size(config) / _BYTES_PER_S
    return Pace(1 / _OPERATIONS_PER_S, step, warms=True)


def measure(model: PreTrainedModel, config: ModelConfig) -> Pace | None:
    """How fast a model would run here, by random weights of one layer and of two, in seconds.

    None where its weights or its device are not here, or its layers cannot be counted out.
    """
    tokens, times = min(_MEASURED, config.limit), []
    try:
        if not cached(config):
            return None
        device, kind = device_of(config), {"dtype": dtype_of(config), "attn_implementation": config.attention}
        for layers in (1, 2):
            small = deepcopy(model.config)
            small.get_text_config().num_hidden_layers = layers
            with device:
                times.append(_times(AutoModelForCausalLM.from_config(small, **kind).eval(), tokens))
    except Exception:  # a model's own code may raise anything, and memory may run out
        return None
    more = model.config.get_text_config().num_hidden_layers - 1
    prefill, step = (one + more * max(two - one, 0) for one, two in zip(*times, strict=True))
    return Pace(prefill / unpruned_operations(model, [tokens]), step, warms=device.type != "cpu")


@torch.no_grad()
def _times(model: PreTrainedModel, tokens: int) -> list[float]:
    """Seconds to prefill so many tokens, and of a decode step: the best of three."""
    ids = torch.ones(1, tokens, dtype=torch.long, device=model.device)
    cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
    runs = (lambda: model(ids, logits_to_keep=1), lambda: model(ids[:, :1], past_key_values=cache))
    return [min(repeat(lambda run=run: run().logits.argmax().item(), number=1, repeat=3)) for run in runs]


def estimate(job: Job, operations: float, pace: Pace) -> float:
    """Seconds of all of a job's records at most; prefilling each once takes so many operations."""
    records, timing, method = len(job.own), job.config.timing, job.method
    prefill = pace.operation_s * operations
    answer = prefill + pace.step_s * sum(job.facts[record.dataset].max_new_tokens for record in job.own)
    untimed = prefill + pace.step_s * records  # of two tokens each
    first = pace.warms * untimed
    passes = method.repeats * (answer + (method.prefills - 1) * prefill + first)
    beside = len(job.compared) * (answer + first) / timing.every
    start = _TRACED * pace.step_s * records
    traced = prefill + start + method.repeats * (method.prefills * prefill + start)
    inside = answer * (method.keep_1 is not None) / timing.every
    warmup = timing.warmup * (method.repeats * method.prefills + len(job.compared)) * untimed / records
    return passes + beside + warmup + job.config.trace * (traced + inside)


def prompt_lengths(job: Job) -> list[float]:
    """About how many tokens each of a job's prompts has."""
    limit, lengths = job.config.model.limit, []
    for record in job.own:
        tokens = max(record.length * _TOKENS_PER_WORD, estimate_tokens(record.context))  # of code a word is many
        lengths.append(min(tokens, limit) if job.facts[record.dataset].truncate else tokens)
    return lengths


def memory_gb(job: Job, model: PreTrainedModel, longest: float) -> float:
    """What a job takes of a GPU's memory at its longest prompt, of so many tokens."""
    config, size = model.config.get_text_config(), _size(job.config.model)
    tokens = longest + job.new_tokens
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kept = 2 * config.num_hidden_layers * heads * width * tokens * size
    inner = getattr(config, "intermediate_size", 4 * config.hidden_size)
    working = tokens * (8 * config.hidden_size + 3 * inner) * size
    return (model.num_parameters() * size + kept + working + _CONTEXT_BYTES) / 1e9


def _size(config: ModelConfig) -> int:
    return 4 if config.dtype == "float32" else 2
