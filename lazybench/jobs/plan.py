"""What a sweep would do: its jobs, what is already done, and about how long and how much memory each takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from transformers import PreTrainedModel

from lazybench.analysis.console import table
from lazybench.data import Record
from lazybench.model.environment import RESULTS_VERSION
from lazybench.run.job import Job
from lazybench.run.sources import Sources
from lazybench.store import RunFolder
from lazybench.store.run_folder import CONFIG, ENVIRONMENT
from lazybench.store.states import StateFile, read

# One A100 in bfloat16: what prefilling reaches of its 312e12 operations a second, and Python's time between kernels.
_OPERATIONS_PER_S = 140e12
_LAYER_STEP_S = 0.9e-3
_BYTES_PER_S = 1.5e12
# English text: tokens of a word, by the tokenizers of Llama 2 and SmolLM2.
_TOKENS_PER_WORD = 1.4
_CONTEXT_BYTES = 1e9  # what CUDA and its libraries take for themselves


class Estimate(NamedTuple):
    """What a job takes at most on one A100.

    Attributes:
        hours: for the records that are left.
        memory_gb: of the GPU, at the longest prompt.
    """

    hours: float
    memory_gb: float


def show(jobs: Sequence[Job], sources: Sources) -> None:
    """Print the plan.

    Args:
        jobs: the checked jobs.
        sources: what they were loaded from.
    """
    rows, hours, unfinished, unknown = [], 0.0, 0, 0
    for job in jobs:
        done = done_records(job)
        guess = estimate(job, sources.skeleton(job.config.model), len(job.own) - done)
        hours += 0 if guess is None else guess.hours
        unknown += guess is None
        unfinished += done < len(job.own)
        config = job.config
        settings = StateFile(config).summary.settings
        rows.append(
            [
                f"{job.method.name} {settings}".strip(),
                config.model.name,
                config.data.name,
                config.task + (f" {config.shard}" if config.shard else ""),
                f"{done}/{len(job.own)}",
                "?" if guess is None else _hours(guess.hours),
                "?" if guess is None else f"{guess.memory_gb:.0f}",
            ]
        )
    header = ["method", "model", "data", "task", "records done", "A100 hours", "GPU GB"]
    print(table(header, rows, left=4))
    for said in dict.fromkeys(job.left_out for job in jobs):
        if said:
            print(said)
    print(f"\n{len(jobs)} job{'s' * (len(jobs) > 1)}, {unfinished} of them with records to run")
    if unknown:
        print(f"{unknown} of a model whose size cannot be had here, marked ? and not counted in hours")
    if unknown < len(jobs):
        print(f"about {_hours(hours)} hours of one A100 at most: every answer as long as its dataset allows")
    for why in sources.missing.values():
        print(f"run here, it would end with: {why}")


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 0.05 or hours == 0 else "<0.1"


def done_records(job: Job) -> int:
    """How many of a job's records are done."""
    state = read(StateFile(job.config).path)
    if state is None or state.folder is None:
        return 0
    folder = Path(job.config.output) / state.folder
    try:
        settings = yaml.safe_load((folder / CONFIG).read_text("utf-8"))
        version = json.loads((folder / ENVIRONMENT).read_text("utf-8")).get("results_version")
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return 0
    if version != RESULTS_VERSION:
        return 0
    if not isinstance(settings, dict) or not _decided_by(settings, json.loads(json.dumps(job.settings))):
        return 0
    retry = job.config.retry_failed
    rows = RunFolder(folder, job.shard, job.config.rerun).done()
    done = {key for key, row in rows.items() if not (retry and row.get("error"))}
    return len(done & {record.key for record in job.own})


def _decided_by(settings: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether a run's results are those of the settings that are asked for, whatever else its settings tell of it.

    Where its data lies does not matter: the records' own hash says which they are. Weights that are out of reach here
    are taken to be those of the run so far.
    """
    given = {key: value for key, value in asked.items() if key != "data" and (key, value) != ("weights", None)}
    return given == {key: settings.get(key) for key in given}


def estimate(job: Job, model: PreTrainedModel | None, left: int) -> Estimate | None:
    """The time of the records left and the memory of the longest one, from the model's size; None where it is unknown.

    Prefilling takes two operations a weight and token; a decoding step reads all weights once, and waits for Python.
    """
    if model is None:
        return None
    config = model.config.get_text_config()
    weights = sum(weight.numel() for weight in model.parameters())
    size = 4 if job.config.model.dtype == "float32" else 2
    step = config.num_hidden_layers * _LAYER_STEP_S + weights * size / _BYTES_PER_S

    def seconds(record: Record) -> float:
        words = min(record.length * _TOKENS_PER_WORD, job.config.model.limit)
        prefill = 2 * weights * words / _OPERATIONS_PER_S
        answer = prefill + job.facts[record.dataset].max_new_tokens * step
        method = answer + (job.method.prefills - 1) * prefill
        # One untimed pass of two tokens goes before the timed one of each.
        return (job.method.repeats * (method + prefill + step)) + len(job.compared) * (answer + prefill + step)

    mean = sum(map(seconds, job.own)) / len(job.own)
    tokens = job.config.model.limit + job.new_tokens
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kept = 2 * config.num_hidden_layers * heads * width * tokens * size
    inner = getattr(config, "intermediate_size", 4 * config.hidden_size)
    working = tokens * (8 * config.hidden_size + 3 * inner) * size
    return Estimate(mean * left / 3600, (weights * size + kept + working + _CONTEXT_BYTES) / 1e9)
