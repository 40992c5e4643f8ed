"""One run before it starts: what follows from its settings, and what can be checked without the weights."""

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from lazybench import metrics
from lazybench.config import ModelConfig, RunConfig, Shard, plain
from lazybench.data import DatasetFacts, Record, choose, fingerprint, load_facts
from lazybench.data.facts import english
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import Method, build_method
from lazybench.methods.baseline import Baseline
from lazybench.methods.calibrated import Calibrated
from lazybench.methods.shared import second_models
from lazybench.model import environment
from lazybench.model.decoding import check_limit
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run import own_code
from lazybench.run.sources import Sources
from lazybench.run.timing import UNMODIFIED
from lazybench.store.journal import Key
from lazybench.store.run_folder import digest
from lazybench.store.writing import check_writable

# Settings of a model that decide no result by themselves: what is found there counts, as `weights`.
PLACES = ("name", "path", "device", "tokenizer", "outline")


@dataclass(frozen=True)
class Job:
    """A run's settings and all that follows from them."""

    config: RunConfig
    facts: dict[str, DatasetFacts]  # by dataset
    datasets: list[str]  # of the task
    method: Method  # not yet prepared for the model
    tokenizer: PreTrainedTokenizerBase | None  # the model's; None in a plan where it is out of reach
    records: list[Record] = field(repr=False)  # all of the run, those of other shards too
    settings: dict[str, Any]  # what `config.yaml` says: everything set, digests of the weights, records and code met
    left_out: str | None = None  # what to say about datasets that `all` or a half leaves out; None without such

    @cached_property
    def shard(self) -> Shard | None:
        """The part of the records that this job runs; None for all."""
        return Shard.parse(self.config.shard)

    @cached_property
    def own(self) -> list[Record]:
        """The records that this job runs."""
        return self.records if self.shard is None else self.shard.of(self.records)

    @cached_property
    def new_tokens(self) -> int:
        """Most tokens that are generated on a prompt."""
        return max(self.facts[name].max_new_tokens for name in self.datasets)

    @cached_property
    def keys(self) -> list[Key]:
        """Dataset and id of all records of the run."""
        return [record.key for record in self.records]

    @property
    def is_baseline(self) -> bool:
        """Whether the method is the unmodified model itself."""
        return isinstance(self.method, Baseline)

    @property
    def compared(self) -> dict[str, Method]:
        """What is timed beside the method: the unmodified model, and the method's engine with nothing pruned."""
        if self.is_baseline or not self.config.timing.paired:
            return {}
        keep_1 = self.method.keep_1 if self.config.timing.keep_1 else None
        return {"baseline": UNMODIFIED} | ({} if keep_1 is None else {"keep_1": keep_1})

    def times(self, record: Record) -> bool:
        """Whether a record is one of those that are timed and looked inside."""
        return self.keys.index(record.key) % self.config.timing.every == 0

    def prompt(self, record: Record) -> Prompt:
        """The record's prompt; `RecordFailure` where it cannot be built."""
        return PromptBuilder(self.tokenizer, self.config.model, self.facts[record.dataset]).build(record)

    def folder(self, where: dict[str, Any]) -> Path:
        """The run's folder on a machine that `environment.describe` described as `where`."""
        return self.place / digest(self._decisive(where))

    @property
    def place(self) -> Path:
        """The folder that holds the run's folder."""
        return Path(self.config.output) / self.config.model.name / self.config.data.name / self.method.name

    def _decisive(self, where: dict[str, Any]) -> dict[str, Any]:
        """What decides a run's results, times included; where files lie and who committed what does not."""
        model = {key: value for key, value in self.settings["model"].items() if key not in PLACES}
        # The records' own hash says which they are, wherever they come from.
        rest = {key: value for key, value in self.settings.items() if key != "data"}
        where = {key: value for key, value in where.items() if key != "commit"}
        facts = {name: self.facts[name].decisive for name in self.datasets}
        return {**rest, "model": model, "where": where, "facts": facts, "results_version": environment.RESULTS_VERSION}


def check_job(job: Job) -> None:
    """Build a prompt and try the output folder before weights are loaded; `LazyBenchError` if either cannot work."""
    if job.tokenizer is not None:
        with suppress(RecordFailure):  # its row will say so
            job.prompt(job.own[0])
    check_writable(job.place)


def method_for(settings: dict[str, Any], model: ModelConfig, sources: Sources) -> Method:
    """Build the method that a config's `method` describes, and check it against the model's config.

    This comes before records, tokenizers and weights are read, which takes long.

    Raises:
        LazyBenchError: a setting is out of range, or the method does not work on the model.
    """
    method, skeleton = build_method(settings), sources.skeleton(model)
    if skeleton is not None:
        method.check(skeleton)
    return method


def prepare(config: RunConfig, sources: Sources) -> Job:
    """Check a run's settings, and find its data and weights.

    Raises:
        LazyBenchError: anything about the settings, the data or the model's files that cannot work.
    """
    facts = load_facts(config.data.datasets)
    choice = choose(config.task, config.data, facts)
    method = method_for(config.method, config.model, sources)
    if (skeleton := sources.skeleton(config.model)) is not None:
        check_limit(config.model, max(facts[name].max_new_tokens for name in choice.datasets), skeleton)
    tokenizer = sources.tokenizer(config.model)
    each = sources.of_each(choice.datasets, config.data, config.model)
    records = [record for dataset in each for record in dataset]
    said = [] if choice.left_out is None else [choice.left_out]
    if empty := ", ".join(name for name, dataset in zip(choice.datasets, each, strict=True) if not dataset):
        said.append(f"data.half={config.data.half} has no record of {empty}: tasks with these have no mean in reports")
    seen = method.calibrated_on(records) if isinstance(method, Calibrated) else 0
    if seen and config.calibrated == "refuse":
        raise LazyBenchError(
            f"method {method.name} was calibrated on {seen} of these {len(records)} records: run it on the other half, "
            "data.half=second or first, or set calibrated=mark to run it all the same, marked in every report"
        )
    settings = plain(config)
    for free in ("output", "trace", "shard", "retry_failed", "rerun", "calibrated"):
        del settings[free]
    if seen:
        settings["calibrated_on"] = seen
    if choice.has != english():
        settings["data"]["has"] = choice.has  # what `all` stands for, should data be added later
    settings["method"] = {"_target_": config.method["_target_"], **asdict(method)}
    settings |= {"weights": sources.weights(config.model), "records": fingerprint(records)}
    settings |= {f"{key}_weights": weights for key, weights in second_models(method, sources.weights).items()}
    measured = {facts[name].metric for name in choice.datasets}
    for metric in measured:
        metrics.get(metric)
    made_of = {"method": config.method, "tokenizer": config.model.tokenizer}
    settings["code"] = own_code.digests(method, made_of, measured)
    job = Job(config, facts, choice.datasets, method, tokenizer, records, settings, "\n".join(said) or None)
    if not job.own:
        raise LazyBenchError(f"shard={config.shard}: the run has {len(records)} records: set fewer parts")
    return job
