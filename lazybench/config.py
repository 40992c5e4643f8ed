"""The schemas of the settings of `run`, `speed`, `match`, `map` and `calibrate`: names, types and ranges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from lazybench.errors import LazyBenchError, suggest

_HERE = Path(__file__).resolve().parent
# Inside an installed wheel the configs lie in the package; in a checkout they lie beside it.
CONF = next(folder for folder in (_HERE / "conf", _HERE.parent / "conf") if folder.is_dir())

T = TypeVar("T")

DTYPES = ("auto", "float32", "float16", "bfloat16")
# Never eager: a speedup over an eager baseline flatters every method.
ATTENTIONS = ("sdpa", "flash_attention_2")
SOURCES = ("sample", "longbench")
HALVES = ("first", "second")


@dataclass
class ModelConfig:
    """A model under test.

    Attributes:
        name: name of the run folder's first level.
        path: hub id, local folder or `.gguf` file; `package:NAME/FILE` is a file inside a Python package.
        revision: hub revision; None means the default branch.
        dtype: `auto` is bfloat16 on a GPU and float32 on a CPU.
        attention: attention implementation of transformers.
        device: `auto` is the first GPU, else the CPU.
        limit: longest prompt in tokens before the chat wrapper; longer ones lose their middle.
        chat: text with `{prompt}` to wrap prompts in, `template` for the tokenizer's own chat template, or
            None for none.
        remove: strings removed from predictions, after white space around them (LongBench, for XGen).
        trust_remote_code: run Python code that comes with the model; off for every model that works without.
        tokenizer: `_target_`, a function that makes the tokenizer, and its arguments, for weights without one. A
            `.gguf` file, and a folder with a `tokenizer.json`, keep their own all the same.
        shape: transformers config, with its `model_type`, of a model with random weights, to measure speed where
            there are no weights: `path` then gives the tokenizer alone. Empty loads the weights.
        outline: transformers config, with its `model_type`, of the model's size: what `plan` goes by where the
            checkpoint's own config.json is out of reach. It decides nothing else.
    """

    name: str = MISSING
    path: str = MISSING
    revision: str | None = None
    dtype: str = "auto"
    attention: str = "sdpa"
    device: str = "auto"
    limit: int = MISSING
    chat: str | None = None
    remove: list[str] = field(default_factory=list)
    trust_remote_code: bool = False
    tokenizer: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    outline: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("model.name", self.name)
        _one_of("model.dtype", self.dtype, DTYPES)
        _one_of("model.attention", self.attention, ATTENTIONS)
        if self.attention == "flash_attention_2" and (self.dtype == "float32" or self.device == "cpu"):
            raise LazyBenchError("model.attention=flash_attention_2 needs a GPU and float16 or bfloat16: use sdpa here")
        _at_least("model.limit", self.limit, 2)
        if self.device == "meta":
            raise LazyBenchError("model.device=meta computes nothing: use auto, cpu or cuda")
        if not all(isinstance(text, str) for text in self.remove):
            raise LazyBenchError(f"model.remove={self.remove} must be a list of texts")
        if self.chat not in (None, "template") and self.chat.count("{prompt}") != 1:
            raise LazyBenchError(f"model.chat={self.chat!r} must be 'template', null or text with one {{prompt}} in it")


@dataclass
class DataConfig:
    """Where records come from.

    Attributes:
        name: name of the run folder's second level.
        source: `sample` (generated, not LongBench), `longbench` (JSON Lines in LongBench's format), or the dotted name
            of a function of the user's, called as `read(dataset, root)`, that yields a dataset's records in order:
            `Record`s, or mappings with LongBench's fields. Its keyword-only arguments can be any of these settings, and
            `prompt_tokens`.
        root: for `longbench`: a folder of `<dataset>.jsonl` files or a `data.zip`; None fetches the hub's. Another
            source takes it as it is.
        limit: records a dataset at most; None means all of them.
        half: `first` or `second`, the records of one half by their hash, the same two halves everywhere: one to
            calibrate on and one to report. None means all of them.
        seed: of generated records.
        tokens: of generated records: for `sample` length of a record's context in tokens, for RULER-6 that of a whole
            prompt and its answer together.
        depths: for RULER-6: where hidden lines lie, in percent of a text, the records in turn; empty means anywhere.
        label: what every output calls these records; None means `name`. For `sample` it is fixed.
        datasets: facts of datasets beyond LongBench's, by name; `like` names one of LongBench's that it is
            like.
    """

    name: str = MISSING
    source: str = MISSING
    root: str | None = None
    limit: int | None = None
    half: str | None = None
    seed: int = 0
    tokens: int = 2048
    depths: list[float] = field(default_factory=list)
    label: str | None = None
    datasets: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("data.name", self.name)
        if self.source not in SOURCES and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", str(self.source)):
            _one_of("data.source", self.source, (*SOURCES, "the dotted name of a function of yours"))
        if self.half is not None:
            _one_of("data.half", self.half, HALVES)
        if self.limit is not None:
            _at_least("data.limit", self.limit, 1)
        if any(not 0 <= depth <= 100 for depth in self.depths):
            raise LazyBenchError(f"data.depths={self.depths}: each is from 0 to 100, in percent")
        if self.source == "sample":
            if self.limit is None:
                raise LazyBenchError("data.limit=null has no end for generated records: give a number")
            if not 512 <= self.tokens <= 131072:
                raise LazyBenchError(f"data.tokens={self.tokens} is out of range: 512 to 131072 for generated records")
            if self.root is not None:
                raise LazyBenchError(f"data.root={self.root} holds records of LongBench's format: use data=longbench")
            if self.datasets:
                raise LazyBenchError("data.datasets needs records of your own: use data=longbench with data.root=")


@dataclass
class TimingConfig:
    """How times are taken.

    Attributes:
        warmup: untimed runs of the first record before any timing.
        paired: also run the unmodified model on each record, next to the method, so that speedups are ratios
            of neighbours.
        keep_1: then also run the method's engine with nothing pruned, where it has one.
        cpu_share: a pass on a CPU whose process got less than this share of wall time times threads was disturbed by
            other work, and is taken again. 0 takes every pass as it is, for methods that do much on a single thread.
        every: every n-th record is timed and, with `trace`, looked inside, from the first on; the others are answered
            and scored alone, and with `trace` compared with the unmodified model.
    """

    warmup: int = 5
    paired: bool = True
    keep_1: bool = True
    cpu_share: float = 0.9
    every: int = 1

    def __post_init__(self) -> None:
        _at_least("timing.warmup", self.warmup, 0)
        _at_least("timing.every", self.every, 1)
        _share("timing.cpu_share", self.cpu_share)


@dataclass
class RunConfig:
    """One run: a method on a model over the records of a task.

    Attributes:
        model: the model under test.
        method: `_target_`, the method's class, and its settings.
        data: where records come from.
        task: one of the six tasks, `chinese`, a group of the user's datasets, one dataset, or `all`: what the data has.
        timing: how times are taken.
        shard: `i/n`, the i-th of n parts of the records, for a run too long for one job; None for all of them.
        trace: also look inside, in untimed passes: first-token divergence, tokens computed by step, attention.
        retry_failed: run again the records that ended in an error, such as out of memory.
        rerun: set a finished run aside and run it anew; a rerun that was stopped goes on where it is set again.
        calibrated: `refuse` or `mark` a run on records that its schedule was calibrated on.
        output: folder that holds all run folders.
    """

    model: ModelConfig = MISSING
    method: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = MISSING
    task: str = MISSING
    timing: TimingConfig = field(default_factory=TimingConfig)
    shard: str | None = None
    trace: bool = False
    retry_failed: bool = False
    rerun: bool = False
    calibrated: str = "refuse"
    output: str = "results/runs"

    def __post_init__(self) -> None:
        _one_of("calibrated", self.calibrated, ("refuse", "mark"))
        Shard.parse(self.shard)
        if not self.output:
            raise LazyBenchError("output= is empty: give a folder")


@dataclass
class SpeedConfig:
    """A measurement of speed without a dataset.

    Attributes:
        model: the model under test.
        method: the method to time; what its work would ideally take is known where it has a schedule.
        lengths: prompt lengths in tokens.
        new_tokens: tokens of a whole generation.
        repeats: timed runs of each subject.
        text: text file to take prompts from; None takes a generated report.
        eager: also time the unmodified model with eager attention.
        cpu_share: a pass on a CPU whose process got less than this share of wall time times threads is taken again.
        output: CSV file to write, with a plot of TTFT next to it; None writes none.
        memory: CSV file to write memory by step and layer to, of the longest prompt; None writes none.
        profile: text file to write tables of operations to, of the longest prompt; None writes none.
        host: print the host's time of a decode step instead, on a small model of its own, whatever else is set.
    """

    model: ModelConfig = MISSING
    method: dict[str, Any] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    new_tokens: int = 64
    repeats: int = 3
    text: str | None = None
    eager: bool = False
    cpu_share: float = 0.9
    output: str | None = None
    memory: str | None = None
    profile: str | None = None
    host: bool = False

    def __post_init__(self) -> None:
        if not self.lengths:
            raise LazyBenchError("lengths=[] measures nothing: give prompt lengths such as lengths=[1024,2048]")
        for length in self.lengths:
            _at_least("lengths", length, 2)
        _at_least("new_tokens", self.new_tokens, 2)
        _at_least("repeats", self.repeats, 1)
        _share("cpu_share", self.cpu_share)


@dataclass
class MatchConfig:
    """The strengths at which a method's measured TTFT speedups are as asked.

    Attributes:
        model: the model.
        method: the method, whose other settings stay as they are.
        data: where records come from.
        task: one of the six tasks, `chinese`, a group of the user's datasets, one dataset, or `all`: what the data has.
        speedups: of TTFT, over the unmodified model; a method is written for each.
        records: prompts to time, spread evenly over the datasets.
        tolerance: how near a speedup must come, as a fraction of it.
        cpu_share: a pass on a CPU whose process got less than this share of wall time times threads is taken again.
        output: folder to write to; its `method/` gets the methods.
    """

    model: ModelConfig = MISSING
    method: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = MISSING
    task: str = MISSING
    speedups: list[float] = field(default_factory=list)
    records: int = 6
    tolerance: float = 0.02
    cpu_share: float = 0.9
    output: str = "results/matches"

    def __post_init__(self) -> None:
        if not self.speedups or any(not 1 < speedup < float("inf") for speedup in self.speedups):
            raise LazyBenchError(f"speedups={self.speedups}: give some, each above 1, such as speedups=[2,3]")
        _at_least("records", self.records, 1)
        if not 0 < self.tolerance < 1:
            raise LazyBenchError(f"tolerance={self.tolerance:g} is out of range: above 0, below 1")
        _share("cpu_share", self.cpu_share)
        if not self.output:
            raise LazyBenchError("output= is empty: give a folder")


@dataclass
class MapConfig:
    """A page that shows, for one prompt, which tokens a method drops and revives; methods stand side by side.

    Attributes:
        model: the model.
        method: the method, one on LazyLLM's engine.
        data: where records come from.
        task: one of the six tasks, a group of the user's datasets, one dataset, or `all`: what the data has.
        record: the record of the task: its number, from 0, or its `_id`.
        text: text file that holds the prompt, in place of a record.
        new_tokens: tokens to generate at most; None means as many as the record's dataset, and 64 for a text.
        output: HTML file to write.
    """

    model: ModelConfig = MISSING
    method: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = MISSING
    task: str | None = None
    record: str | None = None
    text: str | None = None
    new_tokens: int | None = None
    output: str = "results/map.html"

    def __post_init__(self) -> None:
        if self.text is None and self.task is None:
            raise LazyBenchError("nothing is set for task: give task=multidoc_qa, or a prompt in a file as text=FILE")
        if self.text is not None and (self.task, self.record) != (None, None):
            key = "task" if self.record is None else "record"
            raise LazyBenchError(f"text={self.text} is a prompt by itself: leave out {key}=")
        if self.new_tokens is not None:
            _at_least("new_tokens", self.new_tokens, 1)
        if not self.output:
            raise LazyBenchError("output= is empty: give a file")


@dataclass
class CalibrateConfig:
    """A search for the schedule of LazyLLM on a model.

    Attributes:
        model: the model.
        data: where records come from.
        task: one of the six tasks, `chinese`, a group of the user's datasets, one dataset, or `all`: what the data has.
        budget: what the schedule is to keep to, several with commas: `speedup >= 2`, `KL <= 0.1`, `score loss <= 1%`.
        importance: `eq1`, parts of `lazyllm.Importance`, or of a subclass that `_target_` names; `search` searches all
            parts with the schedule, `search: true` among parts those that are not given.
        speedups: ideal speedups of whole generations to search at, besides those of the budgets; a budget of harm picks
            among what is found, without any at 1.5, 2 and 3.
        half: the half of the records to calibrate on, `first` or `second`; `cross` calibrates on each of them and
            measures on the other.
        records: records of each half at most, the datasets in turn; None means all of them.
        minutes: how long to search, though each search goes on until a candidate measured in full is fast enough, or
            none is after some more; what is measured on the other half afterwards comes on top.
        answer_tokens: tokens of a whole generation, which is to be faster, and of the unmodified model's answer to
            compare at most; with 1 the speedup is that of TTFT.
        reference: the schedule that is scaled to each speedup, to compare with.
        confirm: also score the schedules that were found, and the unmodified model.
        output: folder that holds all calibrations.
    """

    model: ModelConfig = MISSING
    data: DataConfig = MISSING
    task: str = MISSING
    budget: str = "speedup >= 2"
    importance: Any = "eq1"
    speedups: list[float] = field(default_factory=list)
    half: str = "first"
    records: int | None = 64
    minutes: float = 30
    answer_tokens: int = 16
    reference: str = ""
    confirm: bool = True
    output: str = "results/calibrations"

    def __post_init__(self) -> None:
        _one_of("half", self.half, (*HALVES, "cross"))
        if self.records is not None:
            _at_least("records", self.records, 1)
        if not 0 < self.minutes < float("inf"):
            raise LazyBenchError(f"minutes={self.minutes:g} is out of range: above 0")
        _at_least("answer_tokens", self.answer_tokens, 1)
        if any(not 1 < speedup < float("inf") for speedup in self.speedups):
            raise LazyBenchError(f"speedups={self.speedups}: each is above 1")
        if not self.output:
            raise LazyBenchError("output= is empty: give a folder")


@dataclass(frozen=True)
class Shard:
    """The `index`-th, from 1, of `count` parts: every `count`-th record, so that the parts take about as long."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str | None) -> Shard | None:
        """Read `i/n`; None is the whole run.

        Raises:
            LazyBenchError: anything else.
        """
        if text is None:
            return None
        found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text, re.ASCII)
        if found is None or int(found[1]) > int(found[2]):
            raise LazyBenchError(f"shard={text}: write i/n, the i-th of n parts, such as shard=1/4 to shard=4/4")
        return cls(int(found[1]), int(found[2]))

    def of(self, records: Sequence[T]) -> list[T]:
        """This part of the records."""
        return list(records[self.index - 1 :: self.count])

    def __str__(self) -> str:
        return f"{self.index}of{self.count}"


# What each command that Hydra configures is set by; `plan` has those of `run`.
SCHEMAS = {"run": RunConfig, "speed": SpeedConfig, "match": MatchConfig, "map": MapConfig, "calibrate": CalibrateConfig}


def register() -> None:
    """Put the schemas where the configs in `conf/` find them."""
    store = ConfigStore.instance()
    for command, schema in SCHEMAS.items():
        store.store(name="schema" if command == "run" else f"{command}_schema", node=schema)


def plain(config: RunConfig) -> dict[str, Any]:
    """The settings that a run's hash is of, as plain values: no `model.outline`, and no empty `model.tokenizer`."""
    settings = asdict(config)
    del settings["model"]["outline"]
    if not config.model.tokenizer:  # as hashes were made before there was such a setting
        del settings["model"]["tokenizer"]
    return settings


def check_name(key: str, name: str) -> None:
    """Raise `LazyBenchError` unless `name` can name a folder."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,199}", name, re.ASCII):
        allowed = "1 to 200 letters, digits, '_', '-', '+' and '.', a letter or digit first"
        raise LazyBenchError(f"{key}={name} names a folder: use {allowed}")


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise LazyBenchError(f"{key}={value}: {suggest(value, choices)}")


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise LazyBenchError(f"{key}={value} is out of range: at least {least}")


def _share(key: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise LazyBenchError(f"{key}={value:g} is out of range: 0 to 1")
