"""Prepare a run: check its settings, and find its records, weights and code, without loading the weights."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from lazybench import identity, metrics
from lazybench.analysis.labels import provenance
from lazybench.config import ModelConfig, RunConfig, Shard
from lazybench.data import DatasetConfig, Record, choose, load_dataset_configs
from lazybench.data.dataset_configs import english
from lazybench.data.record import fingerprint
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import Method, build_method
from lazybench.methods.baseline import Baseline
from lazybench.methods.matched import Matched, settings_of
from lazybench.methods.shared import second_models
from lazybench.model.decoding import check_limit
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.resources import Resources
from lazybench.store.writing import check_writable


@dataclass(frozen=True)
class Job:
    """A run's settings and all that follows from them."""

    config: RunConfig  # the settings as they were given
    dataset_configs: dict[str, DatasetConfig]  # of the task's datasets, in order
    method: Method  # not yet prepared for the model
    tokenizer: PreTrainedTokenizerBase | None  # the model's; None in a plan where it is out of reach
    records: list[Record] = field(repr=False)  # of the run, including those of other shards
    settings: dict[str, Any]  # contents of `config.yaml`: all settings, and digests of the weights, records and code
    notes: list[str] = field(default_factory=list)  # about datasets that are left out, and warnings about prompts

    @cached_property
    def own_records(self) -> list[Record]:
        """The records of this job's shard."""
        shard = Shard.parse(self.config.shard)
        return self.records if shard is None else shard.select(self.records)

    @property
    def max_new_tokens(self) -> int:
        """The largest number of tokens generated for any prompt."""
        return max(config.max_new_tokens for config in self.dataset_configs.values())

    @property
    def is_baseline(self) -> bool:
        """Whether the method is the unmodified model itself."""
        return isinstance(self.method, Baseline)

    @cached_property
    def timed_records(self) -> list[Record]:
        """The records of this job's shard that are timed."""
        return self.spread(self.config.timing.per_dataset)

    def spread(self, per_dataset: int | None) -> list[Record]:
        """Return this job's records among `per_dataset` evenly spread ones of each dataset; None means all."""
        chosen = set()
        for name in self.dataset_configs:
            keys = [record.key for record in self.records if record.dataset == name]
            count = len(keys) if per_dataset is None else min(per_dataset, len(keys))
            chosen |= {keys[number * len(keys) // count] for number in range(count)}
        return [record for record in self.own_records if record.key in chosen]

    def prompt(self, record: Record) -> Prompt:
        """Build a record's prompt; raises `RecordFailure` where it cannot be built."""
        return PromptBuilder(self.tokenizer, self.config.model, self.dataset_configs[record.dataset]).build(record)

    def folder(self, environment: Mapping[str, Any]) -> Path:
        """Return the run's folder, given the result of `environment.describe`."""
        return self.method_folder / identity.run_hash(self.settings, environment, self.dataset_configs)

    def unmodified_path(self, environment: Mapping[str, Any], device: str) -> Path:
        """Return the file of the unmodified model's answers on a device, which all methods share."""
        settings = {key: self.settings[key] for key in ("model", "weights")} | {"device": device}
        return self.method_folder.parent / f".unmodified-{identity.run_hash(settings, environment, {})}.jsonl"

    @property
    def method_folder(self) -> Path:
        """The folder that holds the folders of all runs of the method on the model and data."""
        return Path(self.config.output) / self.config.model.name / self.config.data.name / self.method.name


def method_for(settings: dict[str, Any], model: ModelConfig, resources: Resources) -> Method:
    """Build a config's method and check it against the model's config, which takes less long than reading records.

    Raises:
        LazyBenchError: a setting is out of range, or the method does not work on the model.
    """
    method, skeleton = build_method(settings), resources.skeleton(model)
    if skeleton is not None:
        method.check(skeleton)
    return method


def prepare(config: RunConfig, resources: Resources) -> Job:
    """Check a run's settings, find its data and weights, build its first prompt and check that its folder is writable.

    Raises:
        LazyBenchError: the settings, the data, the model's files or the folder cannot be used.
    """
    choice = choose(config.task, config.data, known := load_dataset_configs(config.data.datasets))
    dataset_configs = {name: known[name] for name in choice.datasets}
    method = method_for(config.method, config.model, resources)
    if (skeleton := resources.skeleton(config.model)) is not None:
        check_limit(config.model, max(each.max_new_tokens for each in dataset_configs.values()), skeleton)
    tokenizer = resources.tokenizer(config.model)
    by_dataset = resources.records_by_dataset(choice.datasets, config.data, config.model)
    records = [record for dataset_records in by_dataset.values() for record in dataset_records]
    notes = [] if choice.left_out is None else [choice.left_out]
    if tokenizer is not None:
        for name in filter(by_dataset.get, by_dataset):
            notes += PromptBuilder(tokenizer, config.model, dataset_configs[name]).warnings(by_dataset[name][0])
    matched_on = 0
    if isinstance(method, Matched):
        matched_on = method.matched_on(records)
        notes.append(f"matched to {method.speedup}: {', '.join(provenance(asdict(method)))}")
    if matched_on and config.matched == "refuse":
        raise LazyBenchError(
            f"method {method.name} was matched on {matched_on} of these {len(records)} records: run it on the "
            "other half, data.half=second or first, or set matched=mark to run it all the same, marked in reports"
        )
    used_metrics = {each.metric for each in dataset_configs.values()}
    for metric in used_metrics:
        metrics.get(metric)
    settings = {key: value for key, value in asdict(config).items() if key not in identity.NOT_HASHED}
    settings |= {"method": settings_of(method), "timing": asdict(config.timing)}
    settings["weights"] = resources.weights(config.model)
    settings["records"] = fingerprint(records)
    settings |= {f"{key}_weights": weights for key, weights in second_models(method, resources.weights).items()}
    targets = {"method": config.method, "tokenizer": config.model.tokenizer}
    settings["code"] = identity.code_digests(method, targets, used_metrics)
    if matched_on:
        settings["matched_on"] = matched_on
    if choice.available != english():
        settings["data"]["available"] = choice.available  # the meaning of `all`, even if data is added later
    job = Job(config, dataset_configs, method, tokenizer, records, settings, [*dict.fromkeys(notes)])
    if not job.own_records:
        raise LazyBenchError(f"shard={config.shard}: the run has {len(records)} records: set fewer parts")
    if tokenizer is not None:
        with suppress(RecordFailure):  # the record's row will have the error
            job.prompt(job.own_records[0])
    check_writable(job.method_folder)
    return job
