"""Turns what Hydra says of a bad command line into one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

import yaml

from lazybench.conf import CONF
from lazybench.config import DataConfig, ModelConfig, RunConfig, SpeedConfig, TimingConfig
from lazybench.errors import LazyBenchError
from lazybench.suggest import suggest
from lazyllm.errors import LazyLLMError


def explain(error: BaseException) -> str:
    """One line: what was wrong with the settings, and what would be right."""
    chain = list(_chain(error))
    for cause in chain:  # a check of ours, or of the library's, says it best
        if isinstance(cause, LazyBenchError | LazyLLMError):
            return str(cause)
    text = _flat(error)
    if (found := re.search(r"Could not override '([^']*)'", text)) and found.group(1):
        key = found.group(1)
        if key in _keys():  # a mapping: its own keys are not known beforehand
            return f"{key} takes keys of your own with a plus in front: +{key}={{...}}"
        return f"there is no setting {key!r}: {suggest(key, _keys())}"
    if found := re.search(r"Could not find '(\w+)/([^']+)' Available options in '\w+': (.*?) Config search", text):
        group, name, options = found.groups()
        return f"there is no {group} {name!r}: {suggest(name, options.split())}"
    if text.startswith("Error merging override") and len(chain) > 1:
        return f"{text.removeprefix('Error merging override ')}: {_flat(chain[-1])}"
    if text.startswith("Error locating target") and len(chain) > 1:
        return f"method._target_: {_flat(chain[-1])}"
    return text


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _flat(error: BaseException) -> str:
    """An exception's message without OmegaConf's notes on object types, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    notes = ("full_key:", "object_type=", "reference_type=", "set env var")
    return re.sub(r"\s+", " ", " ".join(line for line in lines if not line.startswith(notes))) or type(error).__name__


def _keys() -> list[str]:
    """Every setting there is, as it is written on the command line."""
    nested = {"model": ModelConfig, "data": DataConfig, "timing": TimingConfig}
    keys = [field.name for schema in (RunConfig, SpeedConfig) for field in fields(schema)]
    keys += [f"{group}.{field.name}" for group, schema in nested.items() for field in fields(schema)]
    for path in sorted((CONF / "method").glob("*.yaml")):
        keys += [f"method.{key}" for key in yaml.safe_load(path.read_text("utf-8"))]
    return list(dict.fromkeys(keys))
