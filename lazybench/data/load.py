"""Which datasets a task stands for, and their records: generated, LongBench's, or read by a function of the user's."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from inspect import Parameter, signature
from itertools import islice
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from lazybench.config import HALVES, SOURCES, DataConfig
from lazybench.data import longbench, sample
from lazybench.data.facts import ALL, DatasetFacts, datasets_of, english
from lazybench.data.record import Record, to_records
from lazybench.errors import LazyBenchError, first_line, raised_by

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Choice:
    """The datasets of a task."""

    datasets: list[str]  # names of those to run
    has: list[str]  # those that `all` stands for on this data, whatever the task
    left_out: str | None = None  # one line about those that `all` skips because their files are missing


def choose(task: str, config: DataConfig, facts: Mapping[str, DatasetFacts]) -> Choice:
    """The datasets that `task` stands for on this data.

    A task or dataset that is asked for by name is taken whole, whether its files are there or not, but on data that has
    none of LongBench's English datasets a task is those of it that the data has; `all` is what there is: of a folder or
    archive LongBench's 16 English datasets and the user's, as far as there is a file; of the user's own source, the
    user's; of generated records and the hub's archive, the 16.

    Raises:
        LazyBenchError: no such task or dataset, no such data, or nothing of `all` there.
    """
    if config.source not in SOURCES:
        has = list(config.datasets)
        if task == ALL and not has:
            raise LazyBenchError(f"task=all: data.datasets is empty: give the facts of what {config.source} reads")
        return Choice(datasets_of(task, facts, has), has)
    if config.source == "sample" or config.root is None:
        return Choice(datasets_of(task, facts), english())
    files = longbench.names(config.root)
    has = [name for name in (*english(), *config.datasets) if name in files]
    if task != ALL:
        return Choice(datasets_of(task, facts, has), has)
    if not has:
        found = ", ".join(files) or "no .jsonl file"
        raise LazyBenchError(
            f"{config.root}: task=all: none of LongBench's 16 English datasets or of data.datasets there: found {found}"
        )
    expected = [*(english() if {*has} & {*english()} else []), *config.datasets]
    missing = ", ".join(name for name in expected if name not in has)
    return Choice(has, has, f"task=all: {', '.join(has)}; {config.root} lacks {missing}" if missing else None)


def load_records(
    dataset: str,
    config: DataConfig,
    tokenizer: "PreTrainedTokenizerBase | None",
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
        of = {"add_special_tokens": False, "verbose": False}
        count = None if tokenizer is None else lambda text: len(tokenizer(text, **of).input_ids)
        records = sample.load(dataset, limit=config.limit, seed=config.seed, tokens=config.tokens, count_tokens=count)
    elif config.source == "longbench":
        records = longbench.load(dataset, config.root, config.limit)
    else:
        rows = islice(_own_rows(dataset, config, prompt_tokens), config.limit)
        records = list(to_records(rows, dataset, "the name asked for"))
        if not records:
            raise LazyBenchError(f"data.source={config.source}: no records of {dataset}")
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
