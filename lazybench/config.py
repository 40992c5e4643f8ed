"""The schemas of the settings of `run`, `speed`, `match` and `map`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from lazybench.errors import LazyBenchError
from lazybench.rules import (
    AUTO_OR_COUNT,
    FILE,
    NAME,
    above,
    at_least,
    between,
    check,
    check_settings,
    one_of,
    or_null,
    setting,
)

_HERE = Path(__file__).resolve().parent
# An installed wheel has the configs inside the package, a checkout beside it.
CONF = next(folder for folder in (_HERE / "conf", _HERE.parent / "conf") if folder.is_dir())

T = TypeVar("T")

SOURCES = ("sample", "longbench")
HALVES = ("first", "second")


class _Checked:
    def __init_subclass__(cls, section: str = "") -> None:
        cls._section = section

    def __post_init__(self) -> None:
        check_settings(self, self._section)


@dataclass
class ModelConfig(_Checked, section="model."):
    """A model under test.

    Attributes:
        name: name of the run folder's first level.
        path: hub id, local folder or `.gguf` file; `package:NAME/FILE` is a file inside a Python package.
        revision: hub revision; None means the default branch.
        dtype: `auto` is bfloat16 on a GPU and float32 on a CPU.
        attention: attention implementation of transformers; `eager` only where a model has no `sdpa`.
        device: `auto` is the first GPU, else the CPU.
        limit: longest prompt in tokens before the chat wrapper; longer ones lose their middle.
        chat: text with `{prompt}` to wrap prompts in, `template` for the tokenizer's own chat template, or
            None for none.
        template: keyword arguments of the tokenizer's chat template, such as `enable_thinking`.
        remove: strings removed from predictions, after white space around them (LongBench, for XGen).
        trust_remote_code: run Python code that comes with the model; off for every model that works without.
        tokenizer: `_target_`, a function that makes the tokenizer, and its arguments, for weights without one. A
            `.gguf` file, and a folder with a `tokenizer.json`, keep their own.
        shape: transformers config, with its `model_type`, of a model with random weights, to measure speed without
            weights: `path` is then only the tokenizer's. Empty loads the weights.
        outline: transformers config, with its `model_type`, of the model's size, only for `plan` if the checkpoint's
            own config.json is out of reach.
    """

    name: str = setting(MISSING, NAME)
    path: str = MISSING
    revision: str | None = None
    dtype: str = setting("auto", one_of(("auto", "float32", "float16", "bfloat16")))
    attention: str = setting("sdpa", one_of(("sdpa", "flash_attention_2", "eager")))
    device: str = "auto"
    limit: int = setting(MISSING, at_least(2))
    chat: str | None = None
    template: dict[str, Any] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    trust_remote_code: bool = False
    tokenizer: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    outline: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chat not in (None, "template") and self.chat.count("{prompt}") != 1:
            raise LazyBenchError(f"model.chat={self.chat!r} must be 'template', null or text with one {{prompt}} in it")
        if fixed := self.template.keys() & {"chat_template", "tokenize", "add_generation_prompt"}:
            raise LazyBenchError(
                f"model.template cannot set {sorted(fixed)[0]}, which is always the same: leave it out"
            )
        if self.template and self.chat != "template":
            keys = " ".join(f"~model.template.{key}" for key in self.template)
            raise LazyBenchError(f"model.template needs model.chat=template: set that, or remove it by {keys}")


@dataclass
class DataConfig(_Checked, section="data."):
    """Where records come from.

    Attributes:
        name: name of the run folder's second level.
        source: `sample` (generated, not LongBench), `longbench` (JSON Lines in LongBench's format), or the dotted name
            of a function of the user's, called as `read(dataset, root)`, that yields a dataset's records in order:
            `Record`s, or mappings with LongBench's fields. Its keyword-only arguments can be any of these settings.
        root: for `longbench`: a folder of `<dataset>.jsonl` files or a `data.zip`; None fetches the hub's. Another
            source gets it unchanged; `hf_datasets`: a JSON file or a folder, instead of a dataset of the hub.
        limit: maximum number of records per dataset; None means all of them.
        half: `first` or `second`, the records of one half by their hash, the same two halves everywhere: one to
            tune on and one to report. None means all of them.
        seed: of generated records.
        tokens: for `sample`: length of a record's context in tokens. For RULER: which of its records.
        load: for `hf_datasets`: arguments of `datasets.load_dataset` for all datasets; those of a dataset replace them.
        label: name of these records in tables; None means `name`, which rows always have. For `sample` it is fixed.
        datasets: configs of datasets beyond LongBench's, by name; `like` names one of LongBench's that it is
            like.
    """

    name: str = setting(MISSING, NAME)
    source: str = MISSING
    root: str | None = None
    limit: int | None = setting(None, at_least(1))
    half: str | None = setting(None, one_of(HALVES))
    seed: int = 0
    tokens: int = 2048
    load: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    datasets: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == "sample":
            if self.limit is None:
                raise LazyBenchError("data.limit=null has no end for generated records: give a number")
            check("data.tokens", self.tokens, between(512, 131072))


@dataclass
class TimingConfig(_Checked, section="timing."):
    """How answers are timed; `conf/config.yaml` explains each setting."""

    warmup: int = setting(5, at_least(0))
    per_dataset: int | None = setting(12, or_null(at_least(0)))


@dataclass
class RunConfig(_Checked):
    """One run: a method on a model over the records of a task; `conf/config.yaml` explains each setting."""

    model: ModelConfig = MISSING
    method: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = MISSING
    task: str = MISSING
    timing: TimingConfig = field(default_factory=TimingConfig)
    shard: str | None = None
    batch: int | str = setting("auto", AUTO_OR_COUNT)
    trace: bool = False
    trace_tokens: int = setting(32, at_least(1))
    retry_failed: bool = False
    matched: str = setting("refuse", one_of(("refuse", "mark")))
    output: str = setting("results/runs", FILE)

    def __post_init__(self) -> None:
        super().__post_init__()
        Shard.parse(self.shard)


@dataclass
class SpeedConfig(_Checked):
    """A measurement of speed without a dataset; `conf/speed.yaml` explains each setting."""

    model: ModelConfig = MISSING
    method: dict[str, Any] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list, metadata={"rule": at_least(2)})
    new_tokens: int = setting(64, at_least(2))
    repeats: int = setting(3, at_least(1))
    output: str | None = setting(None, FILE)


@dataclass
class MatchConfig(_Checked):
    """A search for settings that reach given speedups; `conf/match.yaml` explains each setting."""

    model: ModelConfig = MISSING
    method: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = MISSING
    task: str = MISSING
    speedups: list[float] = field(default_factory=list, metadata={"rule": above(1)})
    records: int = setting(6, at_least(1))
    tolerance: float = setting(0.02, above(0))
    tune: bool = False
    answer_tokens: int = setting(4, at_least(1))
    output: str = setting("results/matches", FILE)


@dataclass
class MapConfig(_Checked):
    """A page of the tokens that methods prune and revive; `conf/map.yaml` explains each setting."""

    model: ModelConfig = MISSING
    method: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = MISSING
    task: str | None = None
    record: str | None = None
    text: str | None = None
    new_tokens: int | None = setting(None, at_least(1))
    output: str = setting("results/map.html", FILE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text is None and self.task is None:
            raise LazyBenchError("nothing is set for task: give task=multidoc_qa, or a prompt in a file as text=FILE")


@dataclass(frozen=True)
class Shard:
    """The `index`-th, from 1, of `count` parts: every `count`-th record, so that the parts take about as long."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str | None) -> "Shard | None":
        """Read `i/n`; None is the whole run, and anything else a `LazyBenchError`."""
        if text is None:
            return None
        parts = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
        if parts is None or int(parts[1]) > int(parts[2]):
            raise LazyBenchError(f"shard={text}: write i/n, the i-th of n parts, such as shard=1/4 to shard=4/4")
        return cls(int(parts[1]), int(parts[2]))

    def select(self, records: Sequence[T]) -> list[T]:
        """Return this part of the records."""
        return list(records[self.index - 1 :: self.count])

    def __str__(self) -> str:
        return f"{self.index}of{self.count}"


# The schema of each command that Hydra configures; `plan` has that of `run`.
SCHEMAS = {"run": RunConfig, "speed": SpeedConfig, "match": MatchConfig, "map": MapConfig}
# The configs in `conf/` name them so.
for _command, _schema in SCHEMAS.items():
    ConfigStore.instance().store(name="schema" if _command == "run" else f"{_command}_schema", node=_schema)
