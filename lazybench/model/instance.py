"""Instantiate a `_target_` by Hydra, with errors of one line."""

import re
from collections.abc import Mapping
from inspect import signature
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from lazybench.errors import LazyBenchError, causes_of, suggest
from lazyllm import LazyLLMError


def make(key: str, settings: Mapping[str, Any], example: str) -> Any:
    """Instantiate `_target_` with its arguments.

    Args:
        key: name of the setting, such as `method`, for messages.
        settings: `_target_` and its arguments.
        example: a right `_target_`, such as "a class such as package.Class", for messages.

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
    raise LazyBenchError(_message(key, str(target), causes)) from causes[0]


def _message(key: str, target: str, causes: list[BaseException]) -> str:
    error = " ".join(str(causes[-1]).split()) or type(causes[-1]).__name__
    if match := re.search(r"unexpected keyword argument '([^']*)'", error):
        names = [name for name in signature(get_object(target)).parameters if name not in ("_target_", "name")]
        hint = suggest(match[1], names, f"{key}.") if names else "it has no settings, leave it out"
        return f"there is no setting '{key}.{match[1]}': {hint}"
    if match := re.search(r"missing \d+ required .*?: '(\w+)'", error):
        return f"nothing is set for {key}.{match[1]}: give it as {key}.{match[1]}=VALUE"
    if str(causes[0]).startswith("Error in call to target"):
        return f"{key}: {error}"
    return f"{key}._target_: {error.partition('. It cannot be authorized')[0].partition(' full_key:')[0]}"
