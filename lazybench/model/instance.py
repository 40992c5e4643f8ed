"""Makes the object that settings name as `_target_`, or says in one line why there is none."""

import re
from collections.abc import Mapping
from inspect import signature
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from lazybench.errors import LazyBenchError, causes_of, suggest
from lazyllm import LazyLLMError


def make(key: str, settings: Mapping[str, Any], example: str) -> Any:
    """The object that the settings at `key`, such as `method`, describe: `_target_` and its arguments.

    `example` says what `_target_` could be, such as "a class such as package.Class".

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
    for cause in causes:  # a check of ours says it best
        if isinstance(cause, LazyBenchError | LazyLLMError):
            raise cause
    raise LazyBenchError(_why(key, str(target), causes)) from causes[0]


def _why(key: str, target: str, causes: list[BaseException]) -> str:
    said = " ".join(str(causes[-1]).split()) or type(causes[-1]).__name__
    if found := re.search(r"unexpected keyword argument '([^']*)'", said):
        names = [name for name in signature(get_object(target)).parameters if name not in ("_target_", "name")]
        hint = suggest(found[1], names, f"{key}.") if names else "it has no settings, leave it out"
        return f"there is no setting '{key}.{found[1]}': {hint}"
    if found := re.search(r"missing \d+ required .*?: '(\w+)'", said):
        return f"nothing is set for {key}.{found[1]}: give it as {key}.{found[1]}=VALUE"
    if str(causes[0]).startswith("Error in call to target"):
        return f"{key}: {said}"
    return f"{key}._target_: {said.partition('. It cannot be authorized')[0].partition(' full_key:')[0]}"
