"""What LazyBench knows about each dataset: LongBench's own facts, and those of a user's datasets."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any, get_args

from lazybench import metrics
from lazybench.errors import LazyBenchError, suggest

ALL = "all"
# The task of LongBench's five Chinese datasets: each is its language's part of one of the six tasks.
CHINESE = "chinese"
# What of a prompt its answer can continue: see `DatasetFacts.continues`.
CONTINUED = ("context", "last_file")
_NAME = "use letters, digits, '_', '-' and '.', with a letter or digit first"
_TYPES = {str: "text", int: "a whole number above 0", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The facts about one dataset that decide its prompts, its generation and its scores."""

    name: str  # the dataset's name, also the stem of its file
    prompt: str  # template with `{context}` and `{input}`
    max_new_tokens: int  # tokens to generate at most
    metric: str  # name of a function in `lazybench.metrics`, or `module.function` of the user's
    # What it belongs to, one of LongBench's six, `chinese` or a group of the user's; None for what stands alone.
    task: str | None = None
    language: str = "en"  # `en` or `zh`
    records: int | None = None  # number of records of the full dataset; None where it is not known
    chat: bool = True  # whether a chat model's wrapper goes around the prompt
    first_line: bool = False  # whether only the first line of a prediction is scored
    stop_at_newline: bool = False  # whether generation also ends at a newline
    # What the answer goes on with, as a completion of code does, so that a method leaves it whole: `context`, all of
    # it; or `last_file`, the input or, where that is empty, the last of the files in the context
    # (`lazybench.model.prompts` says where it begins). None for answers to a question.
    continues: str | None = None
    # Template with `{input}` that the answer begins with: it ends the prompt, behind a chat model's wrapper, and
    # belongs to no prediction.
    answer_prefix: str = ""
    truncate: bool = True  # whether a prompt that is longer than the model's limit loses its middle
    by_length: bool = False  # whether its score is also shown by the records' length (`longbench_e.LENGTHS`)

    def __post_init__(self) -> None:
        for wrong in _wrong(self):
            raise LazyBenchError(f"dataset {self.name!r}: {wrong}")

    @property
    def decisive(self) -> dict[str, Any]:
        """Those that decide results: all but which scores are shown."""
        return {key: value for key, value in asdict(self).items() if key != "by_length"}


def tasks() -> list[str]:
    """LongBench's six tasks, in the order of its table."""
    return list(_longbench()["tasks"])


def task_names(facts: Mapping[str, DatasetFacts]) -> list[str]:
    """LongBench's six tasks and `chinese`, then the user's groups in the order in which their datasets name them."""
    named = [of.task for of in facts.values() if of.task is not None]
    return list(dict.fromkeys([*tasks(), *named]))


def english() -> list[str]:
    """LongBench's 16 English datasets, in the order of its table."""
    return [name for names in _longbench()["tasks"].values() for name in names]


def load_facts(extra: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, DatasetFacts]:
    """Facts by dataset: LongBench's in the order of its table, then the user's.

    Args:
        extra: facts of the user's datasets by name, as a config gives them: the fields of `DatasetFacts`
            but `name`. Those without a default are required, unless `like` names one of LongBench's datasets: all
            that is not given is then as there, but for the number of records.

    Raises:
        LazyBenchError: a fact of `extra` is unknown, missing or wrong.
    """
    table = _longbench()
    groups = table["tasks"] | {CHINESE: table[CHINESE]}
    task_of = {name: task for task, names in groups.items() for name in names}
    facts = {name: DatasetFacts(name=name, task=task_of[name], **of) for name, of in table["datasets"].items()}
    longbench = dict(facts)
    for name, values in (extra or {}).items():
        if not is_name(name):
            raise LazyBenchError(f"dataset name {name!r}: {_NAME}")
        if name in (ALL, *tasks(), CHINESE, *facts):
            raise LazyBenchError(f"dataset name {name!r} is LongBench's own: choose another name for yours")
        facts[name] = _user_facts(name, values, longbench)
    for name, of in facts.items():
        if of.task in facts:
            raise LazyBenchError(f"dataset {name!r}: task {of.task!r} is a dataset's name: choose another name for it")
    return facts


def datasets_of(task: str, facts: Mapping[str, DatasetFacts], has: Sequence[str] | None = None) -> list[str]:
    """Names of the datasets that `task` stands for.

    Args:
        task: a task (its LongBench datasets, then the user's that name it; one of the six on data that has none of
            LongBench's English datasets: those of it that the data has), a dataset (itself), or `all`.
        facts: what `load_facts` returned.
        has: the datasets that `all` stands for on the data at hand (`lazybench.data.choose`); None for LongBench's
            16 English ones.

    Raises:
        LazyBenchError: neither a task nor a dataset is called so.
    """
    if task == ALL:
        return english() if has is None else list(has)
    if task in facts:
        return [task]
    if task in task_names(facts):
        names = [name for name, of in facts.items() if of.task == task]
        if task in tasks() and has is not None and not {*has} & {*english()}:
            return [name for name in names if name in has] or names
        return names
    raise LazyBenchError(f"unknown task or dataset {task!r}: {suggest(task, [ALL, *task_names(facts), *facts])}")


@cache
def _longbench() -> dict[str, Any]:
    return json.loads(files("lazybench.data").joinpath("longbench.json").read_text("utf-8"))


def is_name(name: object) -> bool:
    """Whether `name` can name a dataset: it becomes a file's name, here and in every folder of results."""
    return isinstance(name, str) and bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII))


def _user_facts(name: str, given: object, longbench: Mapping[str, DatasetFacts]) -> DatasetFacts:
    if not isinstance(given, Mapping):
        raise LazyBenchError(f"dataset {name!r}: its facts must be a mapping, not {type(given).__name__}")
    values = dict(given)
    if (like := values.pop("like", None)) is not None:
        if not isinstance(like, str) or like not in longbench:
            hint = suggest(str(like), longbench)
            raise LazyBenchError(f"dataset {name!r}: like {like!r} is none of LongBench's: {hint}")
        values = {key: of for key, of in asdict(longbench[like]).items() if key not in ("name", "records")} | values
    known = {of.name: of for of in fields(DatasetFacts) if of.name != "name"}
    for key, value in values.items():
        if key not in known:
            raise LazyBenchError(f"dataset {name!r}: unknown fact {key!r}: {suggest(str(key), [*known, 'like'])}")
        kind, *optional = get_args(known[key].type) or [known[key].type]
        if type(value) is not kind and not (value is None and optional):
            raise LazyBenchError(f"dataset {name!r}: {key} must be {_TYPES[kind]}, not {value!r}")
    for key, of in known.items():
        if of.default is MISSING and key not in values:
            raise LazyBenchError(f"dataset {name!r}: the fact {key!r} is missing")
    return DatasetFacts(name, **values)


def _wrong(facts: DatasetFacts) -> Iterator[str]:
    for key, allowed in (("prompt", ("context", "input")), ("answer_prefix", ("input",))):
        names = " and ".join(f"{{{name}}}" for name in allowed)
        try:
            parts = [part[1:] for part in Formatter().parse(getattr(facts, key)) if part[1] is not None]
        except ValueError as error:
            yield f"{key} is no template ({error}): write a literal brace twice"
            continue
        if any(field not in allowed or spec or conversion for field, spec, conversion in parts):
            yield f"{key} may hold no fields but {names}: write a literal brace twice"
        if key == "prompt" and not parts:
            yield "prompt must hold {context} or {input}"
    for key in ("max_new_tokens", "records"):
        if (count := getattr(facts, key)) is not None and count < 1:
            yield f"{key} must be {_TYPES[int]}, not {count}"
    # Whether a function of the user's can be imported is seen where it is needed: a report does without.
    if "." not in facts.metric and facts.metric not in metrics.names():
        yield f"metric {facts.metric!r} is unknown: {suggest(facts.metric, metrics.names())}"
    if facts.continues is not None and facts.continues not in CONTINUED:
        yield f"continues {facts.continues!r} is unknown: {suggest(facts.continues, CONTINUED)}"
    if facts.task is not None and (facts.task == ALL or not is_name(facts.task)):
        yield f"task {facts.task!r}: {_NAME}; {ALL!r} stands for all datasets"
