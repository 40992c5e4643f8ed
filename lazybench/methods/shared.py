"""What methods of several kinds share: rules for their settings, an average of neighbours, a second model."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError
from lazybench.model.loading import load_model, load_tokenizer
from lazyllm import LazyLLMError


class Rule(NamedTuple):
    """What a setting must be, in words and as a test."""

    says: str
    holds: Callable[[Any], bool]


def number(value: Any, kind: type = float) -> float:
    """A number of this kind; NaN, which is in no range, for anything else."""
    right = isinstance(value, kind | int) and not isinstance(value, bool)
    return value if right else math.nan


def _is_layer(value: Any) -> bool:
    part = re.fullmatch(r"(\d+\.?\d*)%", value) if isinstance(value, str) else None
    return 0 < float(part[1]) < 100 if part else number(value, int) >= 0


SHARE = Rule("a number above 0, at most 1", lambda value: 0 < number(value) <= 1)
RATIO = Rule("a number, at least 0 and below 1", lambda value: 0 <= number(value) < 1)
LAYER = Rule("a layer, from 0, or a part of the depth such as 50%", _is_layer)
COUNT = Rule("a whole number, at least 1", lambda value: number(value, int) >= 1)
COUNT_OR_NULL = Rule(f"null or {COUNT.says}", lambda value: value is None or COUNT.holds(value))
ODD = Rule("an odd number, at least 1", lambda value: number(value, int) >= 1 and value % 2 == 1)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))
MODEL = Rule(
    "null, a hub id, a folder or a .gguf file", lambda value: value is None or (isinstance(value, str) and value != "")
)


def one_of(choices: Sequence[str]) -> Rule:
    """A setting that is one of these."""
    return Rule(f"one of {', '.join(choices)}", lambda value: value in choices)


def setting(default: Any, rule: Rule) -> Any:
    """A field of a method that `Method` checks: `keep: float = setting(0.5, SHARE)`."""
    return field(default=default, metadata={"rule": rule})


def check_settings(method: Any) -> None:
    """Raise `LazyBenchError` for a field whose value breaks its rule."""
    for of in fields(method):
        rule, value = of.metadata.get("rule"), getattr(method, of.name)
        if rule is not None and not rule.holds(value):
            raise LazyBenchError(f"method.{of.name}={value} must be {rule.says}")


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """Say of which setting the library complains."""
    try:
        yield
    except LazyLLMError as error:
        raise LazyBenchError(f"{setting}: {error}") from error


KERNEL = one_of(("average", "max"))


def pooled(scores: torch.Tensor, pooling: int, kernel: str = "average") -> torch.Tensor:
    """The mean of each score (rows, tokens) and its neighbours, zeros beyond the ends; or the largest of them."""
    if kernel == "max":
        return nn.functional.max_pool1d(scores[None], pooling, stride=1, padding=pooling // 2)[0]
    return nn.functional.avg_pool1d(scores[None], pooling, stride=1, padding=pooling // 2)[0]


def second_models(method: Any, of: Callable[[ModelConfig], Any], device: str = "auto") -> dict[str, Any]:
    """What `of` gives for each model that a method names besides the one under test, by its setting.

    `LazyBenchError` where one cannot be had, naming the setting.
    """
    found = {}
    for part in fields(method):
        path = getattr(method, part.name)
        if part.metadata.get("rule") is MODEL and path is not None:
            try:  # limit is about prompts of the model under test
                found[part.name] = of(ModelConfig(name=part.name, path=path, device=device, limit=2))
            except LazyBenchError as error:
                raise LazyBenchError(f"method.{part.name}: {error}") from error
    return found


def load_second(method: Any, under_test: PreTrainedModel) -> tuple[PreTrainedModel, PreTrainedTokenizerBase] | None:
    """The causal language model that a method names, on the device of the model under test; None if it names none.

    `LazyBenchError` where it or its tokenizer cannot be had.
    """
    device = str(under_test.device)
    found = second_models(method, lambda config: (load_model(config), load_tokenizer(config)), device)
    return next(iter(found.values()), None)
