"""Where records come from: LongBench itself, or a generated sample in its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lazybench.config import HALVES
from lazybench.data import longbench, sample
from lazybench.data.facts import ALL, DatasetFacts, datasets_of, english
from lazybench.data.record import Record
from lazybench.errors import LazyBenchError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lazybench.config import DataConfig


def load_records(dataset: str, config: DataConfig, tokenizer: PreTrainedTokenizerBase | None) -> list[Record]:
    """The records of one dataset, as the data config says.

    Generated records are counted in the tokenizer's tokens, roughly where that is None.

    Raises:
        LazyBenchError: no such data, or data that is not in LongBench's format.
    """
    if config.source == "sample":
        count = None
        if tokenizer is not None:

            def count(text: str) -> int:
                return len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

        records = sample.load(dataset, limit=config.limit, seed=config.seed, tokens=config.tokens, count_tokens=count)
    else:
        records = longbench.load(dataset, config.root, config.limit)
    return records if config.half is None else [record for record in records if half_of(record) == config.half]


def datasets_there(config: DataConfig) -> list[str]:
    """What `all` stands for on this data: LongBench's 16 English datasets and the user's, as far as there is a file.

    Generated records and the hub's archive have all of the 16.

    Raises:
        LazyBenchError: no such data.
    """
    if config.source == "sample" or config.root is None:
        return english()
    there = longbench.names(config.root)
    return [name for name in (*english(), *config.datasets) if name in there]


def chosen_datasets(task: str, config: DataConfig, facts: Mapping[str, DatasetFacts]) -> list[str]:
    """The datasets that `task` stands for on this data.

    A task or dataset that is asked for by name is taken whole, whether its files are there or not; `all` is what there
    is.

    Raises:
        LazyBenchError: no such task or dataset, no such data, or nothing of `all` there.
    """
    has = datasets_there(config)
    if task == ALL and not has:
        wanted = "LongBench's 16 English datasets" + (" or of data.datasets" if config.datasets else "")
        found = ", ".join(longbench.names(config.root)) or "no .jsonl file"
        raise LazyBenchError(f"{config.root}: task=all: none of {wanted} there: found {found}")
    return datasets_of(task, facts, has)


def left_out(task: str, config: DataConfig) -> str | None:
    """One line about the datasets that `all` leaves out because the data lacks them; None where it lacks none.

    LongBench's own are not missed where the data has none of them.
    """
    has = datasets_there(config) if task == ALL else []
    wanted = [*(english() if set(has) & set(english()) else []), *config.datasets]
    missing = [name for name in wanted if name not in has]
    if not has or not missing or config.root is None:
        return None
    count = f"the {len(has)} datasets" if len(has) > 1 else "the one dataset"
    return f"task=all: {count} that {config.root} has; not there: {', '.join(missing)}"


def half_of(record: Record) -> str:
    """`first` or `second`: by the record's hash alone, whatever other records there are."""
    return HALVES[int(record.hash, 16) % 2]


def data_label(config: DataConfig) -> str:
    """What every output calls these records, so that generated ones are never taken for LongBench."""
    return sample.LABEL if config.source == "sample" else config.name
