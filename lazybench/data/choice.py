"""Which datasets a task stands for on the data at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lazybench.config import SOURCES, DataConfig
from lazybench.data import longbench
from lazybench.data.facts import ALL, DatasetFacts, datasets_of, english
from lazybench.errors import LazyBenchError


@dataclass(frozen=True)
class Choice:
    """The datasets of a task.

    Attributes:
        datasets: names of the datasets to run.
        has: the datasets that `all` stands for on this data, whatever the task.
        left_out: one line naming the datasets that `all` skips because their files are missing, or None. LongBench's
            are named only if the data has at least one of them.
    """

    datasets: list[str]
    has: list[str]
    left_out: str | None


def choose(task: str, config: DataConfig, facts: Mapping[str, DatasetFacts]) -> Choice:
    """The datasets that `task` stands for on this data.

    A task or dataset that is asked for by name is taken whole, whether its files are there or not; `all` is what there
    is: of a folder or archive LongBench's 16 English datasets and the user's, as far as there is a file; of the user's
    own source, the user's, as are the six tasks where it has datasets of them; of generated records and the hub's
    archive, the 16.

    Raises:
        LazyBenchError: no such task or dataset, no such data, or nothing of `all` there.
    """
    if config.source not in SOURCES:
        has = list(config.datasets)
        if task == ALL and not has:
            raise LazyBenchError(f"task=all: data.datasets is empty: give the facts of what {config.source} reads")
        return Choice(datasets_of(task, facts, has), has, None)
    if config.source == "sample" or config.root is None:
        return Choice(datasets_of(task, facts), english(), None)
    files = longbench.names(config.root)
    has = [name for name in (*english(), *config.datasets) if name in files]
    if task != ALL:
        return Choice(datasets_of(task, facts), has, None)
    if not has:
        wanted = "LongBench's 16 English datasets" + (" or of data.datasets" if config.datasets else "")
        found = ", ".join(files) or "no .jsonl file"
        raise LazyBenchError(f"{config.root}: task=all: none of {wanted} there: found {found}")
    missed = [*(english() if {*has} & {*english()} else []), *config.datasets]
    missing = ", ".join(name for name in missed if name not in has)
    count = f"the {len(has)} datasets" if len(has) > 1 else "the one dataset"
    return Choice(has, has, f"task=all: {count} that {config.root} has; not there: {missing}" if missing else None)
