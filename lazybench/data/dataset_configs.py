"""Configs of LongBench's datasets and of custom ones."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from lazybench import metrics
from lazybench.data.longbench_e import LENGTHS
from lazybench.errors import LazyBenchError, prefix_errors, suggest
from lazybench.rules import COUNT, FLAG, NAME, Rule, check, check_settings, setting

ALL = "all"
CHINESE = "chinese"  # the task of LongBench's five Chinese datasets


def _is_template(text: Any, *fields: str) -> bool:
    try:
        text.format(**dict.fromkeys(fields, ""))
    except (LookupError, ValueError, AttributeError):
        return False
    return True


_PROMPT = Rule(
    "text with {context} or {input} and no other field, a literal brace twice",
    lambda value: _is_template(value, "context", "input") and bool(re.search(r"\{(context|input)\}", value)),
)
_TASK = Rule(f"{NAME.text}; {ALL} stands for all datasets", lambda value: NAME.test(value) and value != ALL)
# A custom function is imported when it is needed: a report does without.
_METRIC = Rule(
    f"module.function of a custom metric, or one of {', '.join(metrics.names())}",
    lambda value: isinstance(value, str) and ("." in value or value in metrics.names()),
)


@dataclass(frozen=True, slots=True)
class DatasetConfig:
    """The prompt, generation and score of one dataset."""

    name: str  # also the stem of its file
    prompt: str = setting(MISSING, _PROMPT)  # template with `{context}` and `{input}`
    max_new_tokens: int = setting(MISSING, COUNT)  # tokens to generate at most
    metric: str = setting(MISSING, _METRIC)  # a function in `lazybench.metrics`, or a custom `module.function`
    task: str | None = setting(None, _TASK)  # one of LongBench's six, `chinese`, or a custom name; None for no task
    language: str = "en"  # `en` or `zh`
    records: int | None = setting(None, COUNT)  # number of records of the full dataset; None if unknown
    chat: bool = setting(True, FLAG)  # whether a chat model's wrapper goes around the prompt
    first_line: bool = setting(False, FLAG)  # whether only the first line of a prediction is scored
    stop_at_newline: bool = setting(False, FLAG)  # whether generation also ends at a newline
    truncate: bool = setting(True, FLAG)  # whether a prompt longer than the model's limit loses its middle
    # Groups of its records that have scores of their own, too: of `longbench_e.LENGTHS`, which a config can write as
    # `by_length: true`, or of those that its records name (`Record.groups`).
    groups: list[str] = field(default_factory=list, metadata={"rule": NAME})

    def __post_init__(self) -> None:
        if not isinstance(self.groups, list):
            raise LazyBenchError(f"dataset {self.name!r}: groups={self.groups} must be a list, such as [easy, hard]")
        check_settings(self, f"dataset {self.name!r}: ")


def tasks() -> list[str]:
    """List LongBench's six tasks, in the order of its table."""
    return list(_longbench()["tasks"])


def task_names(configs: Mapping[str, DatasetConfig]) -> list[str]:
    """List LongBench's six tasks and `chinese`, then custom ones in the order of their datasets."""
    names = [dataset.task for dataset in configs.values() if dataset.task is not None]
    return list(dict.fromkeys([*tasks(), *names]))


def english() -> list[str]:
    """List LongBench's 16 English datasets, in the order of its table."""
    return [name for names in _longbench()["tasks"].values() for name in names]


def load_dataset_configs(extra: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, DatasetConfig]:
    """Return configs by dataset: LongBench's in the order of its table, then custom ones.

    Args:
        extra: settings of custom datasets by name, as a data config has them: the fields of `DatasetConfig` but `name`.
            Those without a default are required. With `like`, the name of one of LongBench's datasets, its settings are
            the defaults, but for the number of records.

    Raises:
        LazyBenchError: a setting in `extra` is unknown, missing or wrong.
    """
    table = _longbench()
    groups = table["tasks"] | {CHINESE: table[CHINESE]}
    task_of = {name: task for task, names in groups.items() for name in names}
    configs = {name: DatasetConfig(name=name, task=task_of[name], **row) for name, row in table["datasets"].items()}
    longbench = dict(configs)
    for name, values in (extra or {}).items():
        check("dataset name", name, NAME)
        if name in (ALL, *groups, *longbench):
            raise LazyBenchError(f"dataset name {name!r} is LongBench's own: choose another name for yours")
        configs[name] = _user_config(name, values, longbench)
    for name, dataset in configs.items():
        if (task := dataset.task) in configs:
            raise LazyBenchError(f"dataset {name!r}: task {task!r} is a dataset's name: choose another name for it")
    return configs


def datasets_of(task: str, configs: Mapping[str, DatasetConfig], available: Sequence[str] | None = None) -> list[str]:
    """List the datasets of a task.

    Args:
        task: a task, a dataset, or `all`. A task means its LongBench datasets, then custom ones. On data without any of
            LongBench's English datasets, one of LongBench's six tasks means those of its datasets that the data has.
        configs: as `load_dataset_configs` returns them.
        available: `all` datasets of the data (`lazybench.data.choose`); None for LongBench's 16 English ones.

    Raises:
        LazyBenchError: neither a task nor a dataset has this name.
    """
    if task == ALL:
        return english() if available is None else list(available)
    if task in configs:
        return [task]
    if task not in task_names(configs):
        hint = suggest(task, [ALL, *task_names(configs), *configs])
        raise LazyBenchError(f"unknown task or dataset {task!r}: {hint}")
    names = [name for name, dataset in configs.items() if dataset.task == task]
    if task in tasks() and available is not None and not {*available} & {*english()}:
        return [name for name in names if name in available] or names
    return names


@cache
def _longbench() -> dict[str, Any]:
    return json.loads(files("lazybench.data").joinpath("longbench.json").read_text("utf-8"))


def _user_config(name: str, given: Mapping[str, Any] | None, longbench: Mapping[str, DatasetConfig]) -> DatasetConfig:
    reading = ("load", "columns", "rows")  # see `hf_datasets`
    values = {key: value for key, value in (given or {}).items() if key not in reading}
    by_length = values.pop("by_length", False)
    check(f"dataset {name!r}: by_length", by_length, FLAG)
    if by_length:
        values["groups"] = [*values.get("groups", []), *LENGTHS]
    like = values.pop("like", None)
    if like not in (None, *longbench):
        hint = suggest(str(like), longbench)
        raise LazyBenchError(f"dataset {name!r}: like {like!r} is none of LongBench's: {hint}")
    defaults = {} if like is None else asdict(longbench[like]) | {"records": None}
    with prefix_errors(f"dataset {name!r}", TypeError):  # a setting is unknown or missing
        return DatasetConfig(**{**defaults, **values, "name": name})
