"""Why no object comes of the settings that name its class as `_target_`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from inspect import isfunction, signature

from hydra.errors import InstantiationException

from lazybench.errors import LazyBenchError, causes_of, suggest
from lazyllm.errors import LazyLLMError


def why_not_made(made: str, error: InstantiationException) -> str:
    """Why no object comes of the settings at `made`, such as `method`, in one line."""
    chain = list(causes_of(error))
    for cause in chain:  # a check of ours, or of the library's, says it best
        if isinstance(cause, LazyBenchError | LazyLLMError):
            return str(cause)
    text, cause = flat(error), chain[-1]
    if found := re.search(r"unexpected keyword argument '([^']*)'", text):
        key = found.group(1)
        target = re.search(r"call to target '([^']*)'", text)
        names = _arguments(target.group(1)) if target else []
        hint = of_method(key, names, f"{made}.")
        return f"there is no setting '{made}.{key}' in this {made.rpartition('.')[2]}: {hint}"
    if found := re.search(r"missing \d+ required .*?: '(\w+)'", text):
        return f"nothing is set for {made}.{found.group(1)}: give it as {made}.{found.group(1)}=VALUE"
    if text.startswith("Error in call to target"):
        return f"{made}: {flat(cause)}"
    if text.startswith("Error locating target"):
        return f"{made}._target_: {flat(cause)}"
    return f"{made}._target_: {text.partition('. It cannot be authorized')[0]}"


def _arguments(target: str) -> list[str]:
    module, _, name = target.rpartition(".")
    made_by = getattr(sys.modules.get(module), name, None)
    if is_dataclass(made_by):
        return [field.name for field in fields(made_by)]
    return list(signature(made_by).parameters) if isfunction(made_by) else []


def of_method(leaf: str, names: Iterable[str], prefix: str = "method.") -> str:
    """Which of a method's settings was meant by `leaf`."""
    names = [name for name in names if name not in ("_target_", "name")]
    if not names:
        return "it has none, leave it out"
    hint = suggest(leaf, names, prefix)
    if leaf.startswith("keep") and "schedule" in names:
        hint += f"; keeps stand in the schedule, {prefix}schedule=[10:0.7,20:0.5]"
    return hint


def flat(error: BaseException) -> str:
    """An exception's message without OmegaConf's notes on object types, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    notes = ("full_key:", "object_type=", "reference_type=", "set env var")
    return re.sub(r"\s+", " ", " ".join(line for line in lines if not line.startswith(notes))) or type(error).__name__
