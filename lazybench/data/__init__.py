"""Where records come from: LongBench itself, or a generated sample in its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazybench.config import HALVES
from lazybench.data import longbench, sample
from lazybench.data.record import Record

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lazybench.config import DataConfig


def load_records(dataset: str, config: DataConfig, tokenizer: PreTrainedTokenizerBase) -> list[Record]:
    """The records of one dataset, as the data config says.

    Raises:
        LazyBenchError: no such data, or data that is not in LongBench's format.
    """
    if config.source == "sample":
        records = sample.load(
            dataset,
            limit=config.limit,
            seed=config.seed,
            tokens=config.tokens,
            count_tokens=lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids),
        )
    else:
        records = longbench.load(dataset, config.root, config.limit)
    return records if config.half is None else [record for record in records if half_of(record) == config.half]


def half_of(record: Record) -> str:
    """`first` or `second`: by the record's hash alone, whatever other records there are."""
    return HALVES[int(record.hash, 16) % 2]


def data_label(config: DataConfig) -> str:
    """What every output calls these records, so that generated ones are never taken for LongBench."""
    return sample.LABEL if config.source == "sample" else config.name
