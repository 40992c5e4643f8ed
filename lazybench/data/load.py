"""Records as the data config says: generated, LongBench's, or read by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from inspect import Parameter, signature
from itertools import islice
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from lazybench.config import HALVES, DataConfig
from lazybench.data import longbench, sample
from lazybench.data.record import Record, checked, to_records
from lazybench.errors import LazyBenchError, first_line, raised_by

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_records(
    dataset: str,
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    prompt_tokens: Callable[[str, str], int] | None = None,
) -> list[Record]:
    """The records of one dataset, as the data config says.

    Args:
        dataset: the dataset's name.
        config: where its records come from.
        tokenizer: generated records are counted in its tokens, roughly where it is None.
        prompt_tokens: the tokens of the whole prompt that a context and an input make, for a function of the user's
            that asks for it; None where the tokenizer is.

    Raises:
        LazyBenchError: no such data, or data that is not in LongBench's format.
    """
    if config.source == "sample":
        count = None
        if tokenizer is not None:

            def count(text: str) -> int:
                return len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

        records = sample.load(dataset, limit=config.limit, seed=config.seed, tokens=config.tokens, count_tokens=count)
    elif config.source == "longbench":
        records = longbench.load(dataset, config.root, config.limit)
    else:
        own = islice(_own_rows(dataset, config, prompt_tokens), config.limit)
        rows = list(checked(own, dataset, "the name asked for"))
        if not rows:
            raise LazyBenchError(f"data.source={config.source}: no records of {dataset}")
        records = to_records(rows)
    return records if config.half is None else [record for record in records if half_of(record) == config.half]


def half_of(record: Record) -> str:
    """`first` or `second`: by the record's hash alone, whatever other records there are."""
    return HALVES[int(record.hash, 16) % 2]


def data_label(config: DataConfig) -> str:
    """What every output calls these records, so that generated ones are never taken for LongBench."""
    return sample.LABEL if config.source == "sample" else config.label or config.name


def _own_rows(
    dataset: str, config: DataConfig, prompt_tokens: Callable[[str, str], int] | None
) -> Iterator[tuple[str, Any]]:
    """What the user's function yields, with its place; it is given by name what it asks for by name alone."""
    source = f"data.source={config.source}"
    try:
        read = resolve_name(config.source)
    except Exception as error:  # the user's module, which may raise anything
        raise LazyBenchError(f"{source} cannot be imported: {first_line(error)}") from error
    offered = {**vars(config), "prompt_tokens": prompt_tokens}
    try:
        wanted = [name for name, of in signature(read).parameters.items() if of.kind is Parameter.KEYWORD_ONLY]
        further = {name: offered[name] for name in wanted if name in offered}
        for index, row in enumerate(read(dataset, config.root, **further)):
            yield f"{source}: {dataset}[{index}]", asdict(row) | {"_id": row.id} if isinstance(row, Record) else row
    except LazyBenchError:
        raise
    except Exception as error:
        raise LazyBenchError(f"{source}: {dataset}: raised {raised_by(error)}") from error
