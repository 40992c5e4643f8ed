"""The datasets of a task, and their records: generated, LongBench's, or read by a custom function."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from inspect import getfullargspec
from itertools import islice, zip_longest
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from lazybench.config import HALVES, DataConfig
from lazybench.data import longbench, sample
from lazybench.data.dataset_configs import ALL, DatasetConfig, datasets_of, english
from lazybench.data.record import Record, to_records
from lazybench.errors import LazyBenchError, first_line, raised_by, suggest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Choice:
    """The datasets of a task."""

    datasets: list[str]  # to run
    available: list[str]  # `all` datasets of this data, whatever the task
    left_out: str | None  # one line about datasets without a file, which `all` skips


def choose(task: str, config: DataConfig, dataset_configs: Mapping[str, DatasetConfig]) -> Choice:
    """Find the datasets of a task on this data.

    A named task or dataset is complete, whether its files exist or not; see `datasets_of`. `all` means

    - in a folder or archive: those of LongBench's 16 English datasets and of `config.datasets` that have a file;
    - with a custom source: `config.datasets`;
    - in generated records and the hub's archive: the 16.

    Raises:
        LazyBenchError: no such task or dataset, no such data, or `all` is empty.
    """
    if config.source == "sample" or (config.source == "longbench" and config.root is None):
        return Choice(datasets_of(task, dataset_configs), english(), None)
    names = longbench.names(config.root) if config.source == "longbench" else config.datasets
    available = [name for name in (*english(), *config.datasets) if name in names]
    chosen, left_out = datasets_of(task, dataset_configs, available), None
    if not chosen:
        where = config.root if config.source == "longbench" else f"data.source={config.source}"
        raise LazyBenchError(f"task=all: {where} has none of LongBench's 16 English datasets or of data.datasets")
    expected = [*(english() if {*available} & {*english()} else []), *config.datasets]
    if task == ALL and (missing := ", ".join(name for name in expected if name not in available)):
        left_out = f"task=all: {', '.join(available)}; {config.root} lacks {missing}"
    return Choice(chosen, available, left_out)


def load_records(dataset: str, config: DataConfig, tokenizer: "PreTrainedTokenizerBase | None") -> list[Record]:
    """Load the records of one dataset; `tokenizer` counts the tokens of generated ones, None estimates them.

    Raises:
        LazyBenchError: no such data, or data that is not in LongBench's format.
    """
    if config.source == "sample":
        plain = {"add_special_tokens": False, "verbose": False}
        count = None if tokenizer is None else lambda text: len(tokenizer(text, **plain).input_ids)
        records = sample.load(dataset, limit=config.limit, seed=config.seed, tokens=config.tokens, count_tokens=count)
    elif config.source == "longbench":
        records = longbench.load(dataset, config.root, config.limit)
    else:
        records = list(to_records(islice(_own_rows(dataset, config), config.limit), dataset))
        if not records:
            raise LazyBenchError(f"data.source={config.source}: no records of {dataset}")
    return records if config.half is None else [record for record in records if half_of(record) == config.half]


def half_of(record: Record) -> str:
    """Return the half of a record, `first` or `second`, which depends only on its hash."""
    return HALVES[int(record.hash, 16) % 2]


def in_turn(datasets: Iterable[Iterable[Record]]) -> list[Record]:
    """Return all records, one of each dataset in turn, so that any first part represents all datasets."""
    return [record for turn in zip_longest(*datasets) for record in turn if record is not None]


def data_label(config: DataConfig) -> str:
    """Return the name of these records in every output; generated ones are marked."""
    return sample.LABEL if config.source == "sample" else config.label or config.name


def _own_rows(dataset: str, config: DataConfig) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a custom function with their locations; its keyword-only arguments are settings of `data`."""
    source = f"data.source={config.source}"
    try:
        read = resolve_name(config.source)
    except Exception as error:  # the user's module, which may raise anything
        raise LazyBenchError(f"{source} cannot be imported: {first_line(error)}") from error
    offered = vars(config)
    try:
        settings = {name: offered[name] for name in getfullargspec(read).kwonlyargs if name in offered}
        if "datasets" in settings and dataset not in config.datasets:
            raise LazyBenchError(f"{source}: unknown dataset {dataset!r}: {suggest(dataset, config.datasets)}")
        for index, row in enumerate(read(dataset, config.root, **settings)):
            yield f"{source}: {dataset}[{index}]", asdict(row) | {"_id": row.id} if isinstance(row, Record) else row
    except LazyBenchError:
        raise
    except Exception as error:
        raise LazyBenchError(f"{source}: {dataset}: raised {raised_by(error)}") from error
