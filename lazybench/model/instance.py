"""Instantiate a `_target_` with Hydra, and describe errors in one line."""

import re
from collections.abc import Mapping
from inspect import signature
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from lazybench.errors import LazyBenchError, causes_of, suggest
from lazyllm import LazyLLMError


def make(key: str, settings: Mapping[str, Any], example: str) -> Any:
    """Instantiate the `_target_` of `settings` with its arguments.

    Messages name the setting by its `key`, and give an `example` of a `_target_`, "a class such as package.Class".

    Raises:
        LazyBenchError: `_target_` names nothing, or refuses its arguments.
        LazyLLMError: the library refuses an argument.
    """
    target = settings.get("_target_")
    if not target:
        raise LazyBenchError(f"{key} has no _target_: name {example}")
    try:
        return instantiate(dict(settings), _convert_="all")
    except InstantiationException as error:
        causes = list(causes_of(error))
    for cause in causes:  # our own checks have the best message
        if isinstance(cause, LazyBenchError | LazyLLMError):
            raise cause
    reason = str(causes[-1]).partition(". It cannot be authorized")[0]
    if match := re.search(r"unexpected keyword argument '([^']*)'", reason):
        names = [name for name in signature(get_object(target)).parameters if name not in ("_target_", "name")]
        raise LazyBenchError(f"there is no setting '{key}.{match[1]}': {suggest(match[1], names, f'{key}.')}")
    was_called = str(causes[0]).startswith("Error in call to target")
    raise LazyBenchError(f"{key}: {reason}" if was_called else f"{key}._target_: {reason}") from causes[0]
