"""Rules for settings, stated where a setting is declared: `keep: float = setting(0.5, SHARE)`."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lazybench.errors import LazyBenchError


class Rule(NamedTuple):
    """A condition on a setting, in words and as a test."""

    text: str
    test: Callable[[Any], bool]


def as_number(value: Any, kind: type = float) -> float:
    """Return a number of this kind; NaN, which is in no range, for anything else."""
    return value if isinstance(value, kind | int) and not isinstance(value, bool) else math.nan


def at_least(least: float) -> Rule:
    """Return the rule for a number with a least value."""
    return Rule(f"at least {least}", lambda value: as_number(value) >= least)


def above(limit: float) -> Rule:
    """Return the rule for a finite number above `limit`."""
    return Rule(f"above {limit}", lambda value: limit < as_number(value) < math.inf)


def or_null(rule: Rule) -> Rule:
    """Return the rule for null or a value that `rule` allows."""
    return Rule(f"null or {rule.text}", lambda value: value is None or rule.test(value))


def between(least: float, most: float) -> Rule:
    """Return the rule for a number from `least` to `most`."""
    return Rule(f"from {least} to {most}", lambda value: least <= as_number(value) <= most)


def one_of(choices: Sequence[str]) -> Rule:
    """Return the rule for one of some words."""
    return Rule(f"one of {', '.join(choices)}", lambda value: value in choices)


def _is_layer(value: Any) -> bool:
    part = re.fullmatch(r"(\d+\.?\d*)%", value) if isinstance(value, str) else None
    return 0 < float(part[1]) < 100 if part else as_number(value, int) >= 0


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,199}", value, re.ASCII))


NAME = Rule("a folder's name: 1 to 200 letters, digits, '_', '-', '+' and '.', a letter or digit first", _is_name)
FILE = Rule("a file or folder to write to", bool)
SHARE = Rule("a number above 0, at most 1", lambda value: 0 < as_number(value) <= 1)
RATIO = Rule("a number, at least 0 and below 1", lambda value: 0 <= as_number(value) < 1)
LAYER = Rule("a layer, from 0, or a part of the depth such as 50%", _is_layer)
COUNT = Rule("a whole number, at least 1", lambda value: as_number(value, int) >= 1)
COUNT_OR_NULL = or_null(COUNT)
AUTO_OR_COUNT = Rule(f"auto or {COUNT.text}", lambda value: value == "auto" or COUNT.test(value))
ODD = Rule("an odd number, at least 1", lambda value: as_number(value, int) >= 1 and value % 2 == 1)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))
KERNEL = one_of(("average", "max"))
MODEL = Rule(
    "null, a hub id, a folder or a .gguf file", lambda value: value is None or (isinstance(value, str) and value != "")
)


def setting(default: Any, rule: Rule) -> Any:
    """Declare a field of a dataclass of settings that `check_settings` checks."""
    return dataclasses.field(default=default, metadata={"rule": rule})


def check(key: str, value: Any, rule: Rule) -> None:
    """Raise `LazyBenchError` if a value breaks a rule; `key` names the setting."""
    if not rule.test(value):
        raise LazyBenchError(f"{key}={value} must be {rule.text}")


def check_settings(settings: Any, section: str = "") -> None:
    """Raise `LazyBenchError` for a field whose value, or an item of it, breaks its rule; a default of None is fine."""
    for field in dataclasses.fields(settings):
        if (rule := field.metadata.get("rule")) is None:
            continue
        value = getattr(settings, field.name)
        if value is None and field.default is None:
            continue
        for item in value if isinstance(value, list) else [value]:
            check(f"{section}{field.name}", item, rule)
