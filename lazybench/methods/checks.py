"""Checks of settings that several methods have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

import lazyllm
from lazybench.errors import LazyBenchError
from lazyllm import LazyLLMError


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """Say of which setting the library complains."""
    try:
        yield
    except LazyLLMError as error:
        raise LazyBenchError(f"{setting}: {error}") from error


def check_keep(keep: object) -> None:
    """Raise `LazyBenchError` unless `keep` can be the fraction of the tokens that stay."""
    if not isinstance(keep, int | float) or isinstance(keep, bool) or not 0 < keep <= 1:
        raise LazyBenchError(f"method.keep={keep} must be a number above 0, at most 1")


def check_count(key: str, value: object, least: int = 1) -> None:
    """Raise `LazyBenchError` unless `value` is a whole number, at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LazyBenchError(f"method.{key}={value} must be a whole number, at least {least}")


def one_stage(layer: int, keep: float) -> lazyllm.PruningSchedule:
    """The schedule of a method that prunes once; `LazyBenchError` where `layer` or `keep` is out of range."""
    check_count("layer", layer, least=0)
    check_keep(keep)
    return lazyllm.PruningSchedule([(layer, keep)])


def check_depth(setting: str, schedule: Any, model: PreTrainedModel) -> None:
    """Raise `LazyBenchError` unless `model` has a layer after each stage of `schedule`, which `setting` gave."""
    layers = getattr(model.config, "num_hidden_layers", None)
    if layers is not None:  # else the engine says what it thinks of the model
        with naming(setting):
            lazyllm.PruningSchedule.of(schedule, layers).check(layers)
