"""What LazyBench knows about each dataset: LongBench's own facts, and those of a user's datasets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any

from lazybench import metrics
from lazybench.errors import LazyBenchError, suggest

ALL = "all"
# What of a prompt its answer can continue: see `DatasetFacts.continues`.
CONTINUED = ("context", "last_file")


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The facts about one dataset that decide its prompts, its generation and its scores.

    Attributes:
        name: the dataset's name, also the stem of its file.
        task: the task it belongs to, one of LongBench's six or a group of the user's; None for a dataset that stands
            alone.
        prompt: template with `{context}` and `{input}`.
        max_new_tokens: tokens to generate at most.
        metric: name of a module in `lazybench.metrics`.
        language: `en` or `zh`.
        records: number of records of the full dataset; None where it is not known.
        chat: whether a chat model's wrapper goes around the prompt.
        first_line: whether only the first line of a prediction is scored.
        stop_at_newline: whether generation also ends at a newline.
        continues: what the answer goes on with, as a completion of code does, so that a method leaves it whole:
            `context`, all of it; or `last_file`, the input or, where that is empty, the last of the files in the
            context (`lazybench.model.context` says where it begins). None for answers to a question.
    """

    name: str
    prompt: str
    max_new_tokens: int
    metric: str
    task: str | None = None
    language: str = "en"
    records: int | None = None
    chat: bool = True
    first_line: bool = False
    stop_at_newline: bool = False
    continues: str | None = None


def tasks() -> list[str]:
    """LongBench's six tasks, in the order of its table."""
    return list(_longbench()["tasks"])


def task_names(facts: Mapping[str, DatasetFacts]) -> list[str]:
    """LongBench's six tasks, then the user's groups in the order in which their datasets name them."""
    named = [of.task for of in facts.values() if of.task is not None]
    return list(dict.fromkeys([*tasks(), *named]))


def english() -> list[str]:
    """LongBench's 16 English datasets, in the order of its table."""
    return [name for names in _longbench()["tasks"].values() for name in names]


def load_facts(extra: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, DatasetFacts]:
    """Facts by dataset: LongBench's in the order of its table, then the user's.

    Args:
        extra: facts of the user's datasets by name, as a config gives them: the fields of `DatasetFacts`
            but `name`. Those without a default are required.

    Raises:
        LazyBenchError: a fact of `extra` is unknown, missing or wrong.
    """
    task_of = {name: task for task, names in _longbench()["tasks"].items() for name in names}
    facts = {
        name: DatasetFacts(name=name, task=task_of.get(name), **values)
        for name, values in _longbench()["datasets"].items()
    }
    for name, values in (extra or {}).items():
        _check_name(name, facts)
        facts[name] = _user_facts(name, values)
    for name, of in facts.items():
        if of.task in facts:
            raise LazyBenchError(f"dataset {name!r}: task {of.task!r} is a dataset's name: choose another name for it")
    return facts


def datasets_of(task: str, facts: Mapping[str, DatasetFacts], has: Sequence[str] | None = None) -> list[str]:
    """Names of the datasets that `task` stands for.

    Args:
        task: a task (its LongBench datasets, then the user's that name it), a dataset (itself), or `all`.
        facts: what `load_facts` returned.
        has: the datasets that `all` stands for on the data at hand (`lazybench.data.datasets_there`); None for
            LongBench's 16 English ones.

    Raises:
        LazyBenchError: neither a task nor a dataset is called so.
    """
    if task == ALL:
        return english() if has is None else list(has)
    if task in facts:
        return [task]
    if task in task_names(facts):
        return [name for name, of in facts.items() if of.task == task]
    raise LazyBenchError(f"unknown task or dataset {task!r}: {suggest(task, [ALL, *task_names(facts), *facts])}")


@cache
def _longbench() -> dict[str, Any]:
    return json.loads(files("lazybench.data").joinpath("longbench.json").read_text("utf-8"))


def _wrong_name(name: object) -> str | None:
    # The name becomes a file's name, here and in every folder of results.
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
        return None
    return f"{name!r}: use letters, digits, '_', '-' and '.', with a letter or digit first"


def _check_name(name: object, facts: Mapping[str, DatasetFacts]) -> None:
    wrong = _wrong_name(name)
    if wrong:
        raise LazyBenchError(f"dataset name {wrong}")
    if name in facts or name in tasks() or name == ALL:
        raise LazyBenchError(f"dataset name {name!r} is LongBench's own: choose another name for yours")


def _user_facts(name: str, values: object) -> DatasetFacts:
    if not isinstance(values, Mapping):
        raise LazyBenchError(f"dataset {name!r}: its facts must be a mapping, not {type(values).__name__}")
    for key in values:
        if key not in _CHECKS:
            raise LazyBenchError(f"dataset {name!r}: unknown fact {key!r}: {suggest(str(key), _CHECKS)}")
    for key in ("prompt", "max_new_tokens", "metric"):
        if key not in values:
            raise LazyBenchError(f"dataset {name!r}: the fact {key!r} is missing")
    for key, value in values.items():
        wrong = _CHECKS[key](value)
        if wrong:
            raise LazyBenchError(f"dataset {name!r}: {key} {wrong}")
    return DatasetFacts(name=name, **values)


def _wrong_prompt(value: object) -> str | None:
    if not isinstance(value, str):
        return f"must be text, not {value!r}"
    try:
        parts = list(Formatter().parse(value))
    except ValueError as error:
        return f"is no template ({error}): write a literal brace twice"
    found = [(field, spec, conversion) for _, field, spec, conversion in parts if field is not None]
    if any(field not in ("context", "input") or spec or conversion for field, spec, conversion in found):
        return "may hold no fields but {context} and {input}: write a literal brace twice"
    if not found:
        return "must hold {context} or {input}"
    return None


def _wrong_metric(value: object) -> str | None:
    if value in metrics.names():
        return None
    return f"{value!r} is unknown: {suggest(str(value), metrics.names())}"


def _wrong_task(value: object) -> str | None:
    if value is None or value in tasks():
        return None
    wrong = _wrong_name(value)
    if wrong:
        return wrong
    if value == ALL:
        return f"{value!r} stands for all datasets: choose another name for a group of yours"
    meant = [name for name in (*tasks(), ALL) if _letters(name) == _letters(str(value))]
    return f"{value!r} is LongBench's own but for its spelling: did you mean {meant[0]!r}?" if meant else None


def _letters(name: str) -> str:
    return re.sub(r"[_.-]", "", name).lower()


def _wrong_language(value: object) -> str | None:
    return None if isinstance(value, str) and value else f"must be text such as 'en', not {value!r}"


def _wrong_count(value: object) -> str | None:
    counts = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return None if counts else f"must be a whole number above 0, not {value!r}"


def _wrong_records(value: object) -> str | None:
    return None if value is None else _wrong_count(value)


def _wrong_flag(value: object) -> str | None:
    return None if isinstance(value, bool) else f"must be true or false, not {value!r}"


def _wrong_continues(value: object) -> str | None:
    return None if value is None or value in CONTINUED else f"{value!r} is unknown: {suggest(str(value), CONTINUED)}"


_CHECKS: dict[str, Callable[[object], str | None]] = {
    "prompt": _wrong_prompt,
    "max_new_tokens": _wrong_count,
    "metric": _wrong_metric,
    "task": _wrong_task,
    "language": _wrong_language,
    "records": _wrong_records,
    "chat": _wrong_flag,
    "first_line": _wrong_flag,
    "stop_at_newline": _wrong_flag,
    "continues": _wrong_continues,
}
