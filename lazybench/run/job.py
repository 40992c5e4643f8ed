"""One run, checked as far as it can be without the model's weights, and not started."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench import metrics
from lazybench.config import DataConfig, ModelConfig, RunConfig, Shard, plain
from lazybench.data import chosen_datasets, datasets_there, load_records
from lazybench.data.facts import DatasetFacts, english, load_facts
from lazybench.data.record import Record, fingerprint
from lazybench.errors import LazyBenchError
from lazybench.methods import Method, build_method
from lazybench.methods.calibrated import Calibrated
from lazybench.model.environment import RESULTS_VERSION
from lazybench.model.loading import load_skeleton, load_tokenizer, locate, names_tokenizer
from lazybench.model.own_tokenizer import fingerprint as fingerprint_of
from lazybench.model.prompts import PromptBuilder
from lazybench.run import own_code
from lazybench.store import states
from lazybench.store.run_folder import Key, check_writable, digest

# Settings of a model that decide no result by themselves: what is found there counts, as `weights`.
PLACES = ("name", "path", "device", "tokenizer", "outline")


class Sources:
    """Tokenizers, records and model structures, each loaded once for all jobs that share them."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], Any] = {}

    def tokenizer(self, model: ModelConfig) -> PreTrainedTokenizerBase:
        """See `language_model.load_tokenizer`."""
        return self._once("tokenizer", asdict(model), lambda: load_tokenizer(model))

    def skeleton(self, model: ModelConfig) -> PreTrainedModel:
        """See `language_model.load_skeleton`."""
        return self._once("skeleton", asdict(model), lambda: load_skeleton(model))

    def weights(self, model: ModelConfig) -> str:
        """See `language_model.Weights.identity`; a tokenizer that is not among their files counts too."""
        return self._once("weights", asdict(model), lambda: self._identity(model))

    def records(self, dataset: str, data: DataConfig, model: ModelConfig) -> list[Record]:
        """See `data.load_records`."""
        # Generated records are counted in the model's tokens; others are the same for every model.
        key = {"dataset": dataset, "data": asdict(data), "model": asdict(model) if data.source == "sample" else None}
        return self._once("records", key, lambda: load_records(dataset, data, self.tokenizer(model)))

    def _identity(self, model: ModelConfig) -> str:
        weights = locate(model).identity(model)
        return f"{weights}+{fingerprint_of(self.tokenizer(model))}" if names_tokenizer(model) else weights

    def _once(self, kind: str, key: dict[str, Any], load: Any) -> Any:
        name = (kind, digest(key))
        if name not in self._loaded:
            self._loaded[name] = load()
        return self._loaded[name]


@dataclass(frozen=True)
class Job:
    """A run's settings and all that follows from them.

    Attributes:
        config: the settings.
        facts: facts by dataset.
        datasets: the datasets of the task.
        method: the method, not yet prepared for the model.
        tokenizer: the model's tokenizer; None in a plan where it is out of reach.
        records: all records of the run, whatever the shard.
        settings: what `config.yaml` says: everything set, and the digests of the weights, records and code met.
    """

    config: RunConfig
    facts: dict[str, DatasetFacts]
    datasets: list[str]
    method: Method
    tokenizer: PreTrainedTokenizerBase | None
    records: list[Record] = field(repr=False)
    settings: dict[str, Any]

    @property
    def shard(self) -> Shard | None:
        """The part of the records that this job runs; None for all."""
        return Shard.parse(self.config.shard)

    @property
    def own(self) -> list[Record]:
        """The records that this job runs."""
        return self.records if self.shard is None else self.shard.of(self.records)

    @property
    def new_tokens(self) -> int:
        """Most tokens that are generated on a prompt."""
        return max(self.facts[name].max_new_tokens for name in self.datasets)

    @property
    def keys(self) -> list[Key]:
        """Dataset and id of all records of the run."""
        return [record.key for record in self.records]

    def folder(self, where: dict[str, Any]) -> Path:
        """The run's folder on a machine that `environment.describe` described as `where`."""
        return self.place / digest(self._decisive(where))

    @property
    def place(self) -> Path:
        """The folder that holds the run's folder."""
        config = self.config
        return Path(config.output) / config.model.name / config.data.name / self.method.name

    def _decisive(self, where: dict[str, Any]) -> dict[str, Any]:
        """What decides a run's results, times included; where files lie and who committed what does not."""
        model = {key: value for key, value in self.settings["model"].items() if key not in PLACES}
        # The records' own hash says which they are, however they were come by.
        rest = {key: value for key, value in self.settings.items() if key != "data"}
        where = {key: value for key, value in where.items() if key != "commit"}
        facts = {name: asdict(self.facts[name]) for name in self.datasets}
        return {**rest, "model": model, "where": where, "facts": facts, "results_version": RESULTS_VERSION}


def check_context(config: ModelConfig, new_tokens: int, model: PreTrainedModel) -> None:
    """Refuse prompts that the model has no positions for.

    Args:
        config: the model's settings.
        new_tokens: most tokens that are generated on a prompt.
        model: the model, maybe without weights.

    Raises:
        LazyBenchError: the limit and the new tokens are more than the model holds.
    """
    holds = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if holds is not None and config.limit + new_tokens > holds:
        raise LazyBenchError(
            f"model.limit={config.limit} and {new_tokens} new tokens are more than the {holds} positions of "
            f"{config.name}: set model.limit={holds - new_tokens} or less"
        )


def check_job(job: Job, sources: Sources) -> None:
    """Refuse a job that cannot work, as far as that can be told without loading the model's weights.

    Raises:
        LazyBenchError: the model has too few positions, the method does not work on it, a prompt cannot be built, a
            metric cannot be imported, or the output folder cannot be written.
    """
    config = job.config
    skeleton = sources.skeleton(config.model)
    if skeleton is not None:
        check_context(config.model, job.new_tokens, skeleton)
        job.method.check(skeleton)
    for name in job.datasets:
        metrics.get(job.facts[name].metric)
    if job.tokenizer is not None:
        first = job.own[0]
        PromptBuilder(job.tokenizer, config.model, job.facts[first.dataset]).build(first)
    check_writable(job.place)
    check_writable(Path(config.output) / states.FOLDER)


def prepare(config: RunConfig, sources: Sources) -> Job:
    """Check a run's settings, and find its data and weights.

    Raises:
        LazyBenchError: anything about the settings, the data or the model's files that cannot work.
    """
    facts = load_facts(config.data.datasets)
    datasets = chosen_datasets(config.task, config.data, facts)
    method = build_method(config.method)
    tokenizer = sources.tokenizer(config.model)
    records = [record for name in datasets for record in sources.records(name, config.data, config.model)]
    seen = _calibrated_on(method, records, config)
    settings = plain(config)
    for free in ("output", "trace", "shard", "retry_failed", "rerun", "calibrated"):
        del settings[free]
    if seen:
        settings["calibrated_on"] = seen
    has = datasets_there(config.data)
    if has != english():
        settings["data"]["has"] = has  # what `all` stood for, whatever comes to the data later
    settings["method"] = {"_target_": config.method["_target_"], **asdict(method)}
    settings |= {"weights": sources.weights(config.model), "records": fingerprint(records)}
    made_of = {"method": config.method, "tokenizer": config.model.tokenizer}
    settings["code"] = own_code.digests(method, made_of, {facts[name].metric for name in datasets})
    job = Job(config, facts, datasets, method, tokenizer, records, settings)
    if not job.own:
        raise LazyBenchError(f"shard={config.shard}: the run has {len(records)} records: set fewer parts")
    return job


def _calibrated_on(method: Method, records: list[Record], config: RunConfig) -> int:
    """How many records the method's schedule was calibrated on.

    Raises:
        LazyBenchError: there are some, and the run was not told to go on.
    """
    seen = method.calibrated_on(records) if isinstance(method, Calibrated) else 0
    if seen and config.calibrated == "refuse":
        raise LazyBenchError(
            f"method {method.name} was calibrated on {seen} of these {len(records)} records: run it on the other half, "
            "data.half=second or first, or set calibrated=mark to run it all the same, marked in every report"
        )
    return seen
